"""Skew in pages: the fullest shards, rows per key group, and the largest keys."""

from __future__ import annotations

import json
from typing import Any

from statekit.query.tables.top import Measure
from statekit.server.dashboard.charts import heat_map
from statekit.server.dashboard.job_facts import JobFacts
from statekit.server.dashboard.page_answers import Addresses, is_of_other_site, known_epoch, tried
from statekit.server.routes.job_routes import ranking_of, shard_items

_COUNTED_AT_ONCE = 200_000
"""Up to that many rows are read without a click."""

_KEYS, _SHARDS = 20, 16

_MEASURES: dict[Measure, tuple[str, str]] = {
    "size": ("largest", "bytes"),
    "rows": ("most rows", "rows"),
    "writes": ("most written", "writes"),
}
"""The name of each ranking, and the field that it compares."""


async def skew_part(
    facts: JobFacts, operator: dict[str, Any], state: str | None, by: Measure | None, *, count: bool
) -> dict[str, Any]:
    """Return the fullest shards of an operator, and the ranking of keys.

    The ranking is counted in a request of its own: the page has the address of that, and loads it
    at once if that reads few rows, or if the user wants it.

    Parameters:
        by: the measure that the user has chosen; None for the first.
        count: count the ranking in this request, if it is for a new page.
    """
    found = shard_items(facts.call, facts.view, operator["operator"], state)
    fullest = sorted(found, key=lambda shard: shard["rows"] or 0, reverse=True)[:_SHARDS]
    is_counted = count and known_epoch(facts.call) is None
    ranking = await _ranking(facts, operator, state, by, is_counted=is_counted)
    return {"shards": fullest, "shard_count": len(found), "ranking": ranking}


async def _ranking(
    facts: JobFacts,
    operator: dict[str, Any],
    state: str | None,
    by: Measure | None,
    *,
    is_counted: bool,
) -> dict[str, Any]:
    rows = sum(own["rows"] for own in operator["states"] if state in (None, own["state"]))
    chosen: Measure = by or "size"
    is_wanted = by is not None or rows <= _COUNTED_AT_ONCE
    place = [facts.job.alias, operator["operator"], *([state] if state else [])]
    view = "skew" if state else None
    to = Addresses(facts.call).to
    part: dict[str, Any] = {
        "rows": rows,
        "by": chosen,
        "measure": _MEASURES[chosen][1],
        "load": None,
        "found": None,
        "problem": None,
        "heat": None,
        "epoch": facts.view.epoch,
        "measures": [
            {
                "name": name if is_wanted else f"Count: {name}",
                "href": to(*place, view=view, by=measure),
                "is_chosen": is_wanted and measure == chosen,
            }
            for measure, (name, _) in _MEASURES.items()
        ],
    }
    if not is_counted or is_of_other_site(facts.call):
        if is_wanted:
            part["load"] = to(*place, view=view, by=chosen, count=1)
        return part
    counting = ranking_of(facts.call, facts.view, operator["operator"], state, chosen, _KEYS)
    raw, part["problem"] = await tried(facts.call, counting)
    if raw is not None:
        part["found"] = found = json.loads(bytes(raw))
        part["most"] = max([1, *(key[part["measure"]] for key in found["keys"])])
        if found["key_groups"]:
            part["heat"] = heat_map(found["key_groups"], facts.view.manifest.key_groups)
    return part
