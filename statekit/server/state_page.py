"""The page of a state: its keys in order, live changes, growth, skew, and how to read it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from starlette.responses import Response

from statekit.query.tables.top import Measure
from statekit.server.answers import encode
from statekit.server.call import RouteCall
from statekit.server.dashboard.keys import texts_of
from statekit.server.job_facts import JobFacts
from statekit.server.page_answers import page, tried
from statekit.server.problems import Problem
from statekit.server.reads import Part, json_of, page_of_keys
from statekit.server.shown_epochs import ShownEpochs, shown_epochs, view_of
from statekit.server.skew_part import ranking_part, shards_part

_PAGE_ROWS = 50
_PAUSE_MS = 1000

_TABS = {"keys": "Keys", "live": "Live", "growth": "Growth", "skew": "Skew", "read": "Read it"}


class StateAsked(NamedTuple):
    """The parameters of a request for the page.

    Parameters:
        view: the name of a tab; None for the first.
        start: first key of the page, as JSON.
        cursor: of a further page of keys.
        prefix: of the keys whose changes are shown.
        epoch: that the user has chosen; None for the last one.
        by: measure of the ranking of keys.
        is_counted: count the ranking in this request.
        shown: the epoch of the keys that the browser shows already.
    """

    view: str | None
    start: str | None
    cursor: str | None
    prefix: str
    epoch: int | None
    by: Measure | None
    is_counted: bool
    shown: int | None


async def state_page(
    request: RouteCall,
    facts: JobFacts,
    operator: dict[str, Any],
    state: str,
    asked: StateAsked,
    is_news: bool,
) -> Response:
    """Return the page of a state.

    Parameters:
        is_news: the browser shows the page already, with its keys and its ranking.
    """
    name = operator["operator"]
    described = next((each for each in operator["states"] if each["state"] == state), None)
    if described is None:
        detail = f"job {facts.job.alias} has no state {name}.{state} that can be read"
        raise Problem(404, "not_found", detail)
    names = ["growth"] if described["is_local"] else list(_TABS)
    shown = asked.view if asked.view in names else names[0]
    context: dict[str, Any] = {
        "known": str(facts.view.id),
        "pause": _PAUSE_MS,
        "facts": facts,
        "operator": operator,
        "state": described,
        "tabs": [(each, _TABS[each]) for each in names],
        "shown": shown,
    }
    if shown == "keys":
        context |= await _keys(request, facts, operator, state, asked, is_news)
    elif shown == "live":
        kinds = [field["type"] for field in operator["key"]]
        context |= {"prefix": asked.prefix, "has_text_keys": kinds in (["str"], ["dynamic"])}
    elif shown == "growth":
        context["charts"] = facts.growth(name, state)
    elif shown == "skew":
        is_counted = asked.is_counted and not is_news
        context["ranking"] = await ranking_part(
            request, facts, operator, state, asked.by, is_counted
        )
        context |= shards_part(request, facts, name, state)
    else:
        sql = f'select * from "{name}"."{state}" limit 100'
        context |= {"base_url": str(request.base_url), "sql": sql}
    problem = context.get("problem")
    status = problem.status if problem else 200
    return page(request, "state", [facts.job.alias, name, state], status, **context)


async def _keys(
    request: RouteCall,
    facts: JobFacts,
    operator: dict[str, Any],
    state: str,
    asked: StateAsked,
    is_news: bool,
) -> dict[str, Any]:
    """Return the keys of a page. They stay as they are while the page is shown."""
    epochs = shown_epochs(facts, asked.epoch, asked.shown if is_news else None)
    found, problem = None, None
    if not is_news:
        read = _read(request, facts, epochs, operator["operator"], state, asked)
        result, problem = await tried(request, read)
        if result is not None:
            found, epoch = result
            epochs = epochs._replace(shown=epoch)
    start = None if asked.start is None else json_of(asked.start, "start")
    return {
        "epochs": epochs,
        "shown_epoch": epochs.shown,
        "start": asked.start,
        "cursor": asked.cursor,
        "texts": [] if asked.start is None else texts_of(operator["key"], start),
        "page": found,
        "problem": problem,
    }


async def _read(
    request: RouteCall,
    facts: JobFacts,
    epochs: ShownEpochs,
    operator: str,
    state: str,
    asked: StateAsked,
) -> tuple[dict[str, Any], int]:
    if asked.cursor is None:
        view = await view_of(facts, epochs)
    else:
        view = await facts.job.view_of_cursor(asked.cursor)
    rows, part = view.state(operator, state), Part(start=asked.start, limit=_PAGE_ROWS)
    found = await request.served.admission.read(
        lambda: encode(page_of_keys(rows, part, asked.cursor))
    )
    return json.loads(found), view.epoch
