"""The page of a key: all states of an operator for it, its timers, and the history of values."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from starlette.responses import Response

from statekit.query.replica.view import View
from statekit.server.answers import encode
from statekit.server.call import RouteCall
from statekit.server.dashboard.keys import texts_of
from statekit.server.dashboard.texts import cut, value_lines
from statekit.server.histories import KeyHistory, history_of
from statekit.server.insight_routes import states_of_key
from statekit.server.job_facts import JobFacts
from statekit.server.page_answers import Addresses, page, tried
from statekit.server.reads import Part, json_of
from statekit.server.shown_epochs import ShownEpochs, shown_epochs, view_of

_LINES, _LINE_LENGTH = 24, 400
"""Lines of a value that are shown at first, and the limit of their length."""

_PAUSE_MS = 1000


async def key_page(
    request: RouteCall,
    facts: JobFacts,
    operator: dict[str, Any],
    key: str,
    epoch: int | None,
    histories: list[str],
    complete: list[str],
) -> Response:
    """Return the page of a key.

    Parameters:
        key: as JSON.
        epoch: that the user has chosen; None for the last one.
        histories: the states whose history is shown.
        complete: the states whose value is shown to its last line.
    """
    data = json.loads(encode(json_of(key, "key")))
    name, alias = operator["operator"], facts.job.alias
    epochs = shown_epochs(facts, epoch)
    shown = [("history", each) for each in histories] + [("all", each) for each in complete]
    context: dict[str, Any] = {
        "known": str(facts.view.id),
        "pause": _PAUSE_MS,
        "facts": facts,
        "operator": operator,
        "data": data,
        "key_json": key,
        "texts": texts_of(operator["key"], data),
        "epochs": epochs,
        "hidden": [("key", key), *shown],
        "live": Addresses(request).to(alias, name, key=key, history=histories, all=complete),
    }
    read = _read(request, facts, epochs, name, data)
    result, problem = await tried(request, read)
    if result is None:
        status = problem.status if problem else 200
        return page(request, "key", [alias, name], status, problem=problem, **context)
    view, found = result
    cards = [
        await _card(request, facts, operator, state, own, key, epochs, histories, complete)
        for state, own in found["states"].items()
    ]
    context |= {"found": found, "began": view.processing_time.isoformat(), "states": cards}
    return page(request, "key", [alias, name], problem=None, **context)


async def _read(
    request: RouteCall, facts: JobFacts, epochs: ShownEpochs, operator: str, data: Any
) -> tuple[View, dict[str, Any]]:
    view = await view_of(facts, epochs)
    found = await states_of_key(request, view, operator, data)
    return view, json.loads(encode(found))


async def _card(
    request: RouteCall,
    facts: JobFacts,
    operator: dict[str, Any],
    state: str,
    own: dict[str, Any],
    key: str,
    epochs: ShownEpochs,
    histories: list[str],
    complete: list[str],
) -> dict[str, Any]:
    described = next((each for each in operator["states"] if each["state"] == state), None)
    kind = described["kind"] if described else ""
    has_rows, value = kind in ("map", "list"), own["value"]
    is_absent = value is None or (has_rows and not value)
    lines = [] if is_absent else value_lines(value)
    is_complete = state in complete
    shown = lines if is_complete else [cut(line, _LINE_LENGTH) for line in lines[:_LINES]]

    def to(**changed: Any) -> str:
        given = {"key": key, "epoch": epochs.chosen, "history": histories, "all": complete}
        return Addresses(request).to(facts.job.alias, operator["operator"], **given | changed)

    is_open = state in histories
    others = [each for each in histories if each != state]
    card = {
        "name": state,
        "type": described["type"] if described else "",
        "has_rows": has_rows,
        "lines": None if is_absent else shown,
        "line_count": len(lines),
        "more": None if shown == lines else to(all=[*complete, state]),
        "is_cut": own["is_cut"],
        "row_count": 0 if value is None or not has_rows else len(value),
        "expires": own["expires"],
        "is_open": is_open,
        "history_href": to(history=others if is_open else [*histories, state]),
    }
    if is_open:
        card |= await _history(request, facts, operator["operator"], state, key)
    return card


async def _history(
    request: RouteCall, facts: JobFacts, operator: str, state: str, key: str
) -> dict[str, Any]:
    read = partial(history_of, facts.job, operator, state, json_of(key, "key"), Part())
    found, problem = await tried(request, request.served.admission.run("histories", read, request))
    found = found or KeyHistory(b"[]", is_cut=False)  # type: ignore[arg-type]
    changes = json.loads(bytes(found.entries))
    numbers = [each["value"] for each in changes]
    is_numeric = any(_is_number(own) for own in numbers) and all(
        own is None or _is_number(own) for own in numbers
    )
    return {
        "history_problem": problem,
        "changes": changes[::-1],
        "numbers": numbers if is_numeric else None,
        "is_history_cut": found.is_cut,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
