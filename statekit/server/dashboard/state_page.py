"""The page of a state: its keys in order, live changes, growth, skew, and how to read it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response, StreamingResponse

from statekit.errors import QueryError
from statekit.query.tables.top import Measure
from statekit.server.admission.callers import PAGES
from statekit.server.answers.problems import Problem, bad_request
from statekit.server.answers.values import encode
from statekit.server.dashboard.job_facts import JobFacts, ShownEpochs, last_facts
from statekit.server.dashboard.keys import texts_of, typed_key
from statekit.server.dashboard.page_answers import Addresses, is_of_other_site, known_epoch, tried
from statekit.server.dashboard.skew_part import skew_part
from statekit.server.dashboard.texts import json_text
from statekit.server.dashboard.watch_page import PageWatch
from statekit.server.jobs.tables import MEDIA_TYPES, Asked
from statekit.server.jobs.wanted import EpochNumber
from statekit.server.jobs.watch import EVENT_STREAM
from statekit.server.routes.call import RouteCall
from statekit.server.routes.reads import AskedPart, json_of, page_of_keys
from statekit.server.routes.route_table import RouteTable

routes = RouteTable()

_PAGE_ROWS, _EPOCHS = 50, 200

_TABS = {"keys": "Keys", "live": "Live", "growth": "Growth", "skew": "Skew", "read": "Read it"}


class _StateParameters(BaseModel, extra="forbid"):
    """`field` may be there several times."""

    view: str | None = None
    start: str | None = None
    cursor: str | None = None
    prefix: str = ""
    epoch: EpochNumber = None
    by: Measure | None = None
    count: bool = False
    field: str | None = None
    after: str = ""
    format: str | None = None


@routes.get(f"{PAGES}{{job}}/{{operator}}/{{state}}", {})
async def page_of_state(
    call: RouteCall, operator: str, state: str, asked: _StateParameters
) -> Response:
    """Return the page of a state, its live changes, or all of its rows as a file."""
    if call.watches:
        last = call.header(b"last-event-id") or asked.after
        watch = PageWatch(call, (operator, state), asked.prefix, last)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(watch.events(), 200, headers, EVENT_STREAM)
    if asked.format is not None and not is_of_other_site(call):
        return await _file(call, operator, state, asked.format)
    facts = await last_facts(call, _EPOCHS, operator)
    of_operator = facts.operator(operator)
    if asked.field is not None:
        text = json_text(typed_key(of_operator["key"], call.query_params.getlist("field")))
        to = Addresses(call).to(call.job.alias, operator, state, start=text, epoch=asked.epoch)
        return RedirectResponse(to, 303)
    described = next((each for each in of_operator["states"] if each["state"] == state), None)
    if described is None:
        detail = f"job {call.job.alias} has no state {operator}.{state} that can be read"
        raise Problem(404, "not_found", detail)
    names = ["growth"] if described["is_local"] else list(_TABS)
    shown = asked.view if asked.view in names else names[0]
    match shown:
        case "keys":
            context = await _keys(facts, of_operator, state, asked)
        case "live":
            kinds = [field["type"] for field in of_operator["key"]]
            has_text_keys = kinds in (["str"], ["dynamic"])
            context = {"prefix": asked.prefix, "has_text_keys": has_text_keys}
        case "growth":
            context = {"charts": facts.growth(operator, state)}
        case "skew":
            context = await skew_part(facts, of_operator, state, asked.by, count=asked.count)
        case _:
            sql = f'select * from "{operator}"."{state}" limit 100'
            context = {"base_url": str(call.base_url), "sql": sql}
    problem = context.get("problem")
    return facts.page(
        "state",
        [operator, state],
        problem.status if problem else 200,
        operator=of_operator,
        state=described,
        tabs=[(each, _TABS[each]) for each in names],
        shown=shown,
        **context,
    )


async def _file(call: RouteCall, operator: str, state: str, to: str) -> Response:
    """Return all rows of a state as a file to save."""
    format_ = next((each for each in MEDIA_TYPES if each == to), None)
    if format_ is None:
        raise bad_request(f"format={to!r:.50}: give one of {', '.join(MEDIA_TYPES)}")
    view = call.job.last()
    if state not in view.record(operator).holds:
        raise QueryError(f"operator {operator!r} has no state {state!r:.200}")
    asked = Asked(operator, state, format_, False)
    found = await call.served.tables.response(call.job, view, asked, call)
    name = f"{call.job.alias}-{operator}-{state}.{to}"
    found.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return found


async def _keys(
    facts: JobFacts, operator: dict[str, Any], state: str, asked: _StateParameters
) -> dict[str, Any]:
    """Return the keys of a page. They stay as they are while the page is shown."""
    call, found, problem = facts.call, None, None
    is_news = known_epoch(call) is not None
    shown = call.header(b"statekit-shown") or ""
    is_number = is_news and shown.isdecimal() and len(shown) < 18
    epochs = ShownEpochs.of(facts, asked.epoch, int(shown) if is_number else None)
    if not is_news:
        read = _read(facts, epochs, operator["operator"], state, asked)
        result, problem = await tried(call, read)
        if result is not None:
            found, epoch = result
            epochs = epochs._replace(shown=epoch)
    start = asked.start or None
    texts = [] if start is None else texts_of(operator["key"], json_of(start, "start"))
    return {
        "epochs": epochs,
        "shown_epoch": epochs.shown,
        "start": start,
        "cursor": asked.cursor,
        "texts": texts,
        "page": found,
        "problem": problem,
    }


async def _read(
    facts: JobFacts, epochs: ShownEpochs, operator: str, state: str, asked: _StateParameters
) -> tuple[dict[str, Any], int]:
    if asked.cursor is None:
        view = await epochs.view(facts)
    else:
        view = await facts.job.view_of_cursor(asked.cursor)
    rows, part = view.state(operator, state), AskedPart(start=asked.start or None, limit=_PAGE_ROWS)
    found = await facts.call.served.admission.read(
        lambda: encode(page_of_keys(rows, part, asked.cursor))
    )
    return json.loads(found), view.epoch
