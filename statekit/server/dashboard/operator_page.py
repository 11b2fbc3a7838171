"""The page of an operator, and that of a key: its states, its timers, and the history of values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response

from statekit.job.picture import cut
from statekit.query.replica.view import View
from statekit.query.tables.top import Measure
from statekit.server.admission.access import forbidden
from statekit.server.admission.callers import PAGES
from statekit.server.answers.values import encode
from statekit.server.dashboard.job_facts import JobFacts, ShownEpochs, last_facts
from statekit.server.dashboard.keys import texts_of, typed_key
from statekit.server.dashboard.page_answers import Addresses, tried
from statekit.server.dashboard.skew_part import skew_part
from statekit.server.dashboard.texts import json_text, value_lines
from statekit.server.jobs.wanted import EpochNumber
from statekit.server.routes.call import RouteCall
from statekit.server.routes.histories import KeyHistory, history_of
from statekit.server.routes.job_routes import states_of_key
from statekit.server.routes.reads import WHOLE, json_of
from statekit.server.routes.route_table import RouteTable

routes = RouteTable()

_EPOCHS = 120
_LINES, _LINE_LENGTH = 24, 400
"""Lines of a value that are shown at first, and the limit of their length."""


class _OperatorParameters(BaseModel, extra="forbid"):
    """`field`, `history` and `all` may be there several times."""

    key: str | None = None
    epoch: EpochNumber = None
    by: Measure | None = None
    count: bool = False
    field: str | None = None
    history: str | None = None
    all: str | None = None


@routes.get(f"{PAGES}{{job}}/{{name}}", {})
async def operator_page(call: RouteCall, name: str, asked: _OperatorParameters) -> Response:
    """Return the page of an operator; with `key`, that of a key."""
    if not call.token.sees(call.job.alias, name):
        raise forbidden(f"{call.job.alias}/{name}")
    facts = await last_facts(call, _EPOCHS)
    operator, given = facts.operator(name), call.query_params
    if asked.field is not None:
        text = json_text(typed_key(operator["key"], given.getlist("field")))
        return RedirectResponse(Addresses(call).to(call.job.alias, name, key=text), 303)
    if asked.key is not None:
        epochs = ShownEpochs.of(facts, asked.epoch)
        shown = given.getlist("history"), given.getlist("all")
        return await _KeyPage(facts, operator, asked.key, epochs, *shown).response()
    skew = await skew_part(facts, operator, None, asked.by, count=asked.count)
    return facts.page("operator", [name], operator=operator, flow=facts.flow(name), **skew)


@dataclass(frozen=True)
class _KeyPage:
    """The page of a key.

    Parameters:
        key: as JSON.
        histories: the states whose history is shown.
        complete: the states whose value is shown to its last line.
    """

    facts: JobFacts
    operator: dict[str, Any]
    key: str
    epochs: ShownEpochs
    histories: list[str]
    complete: list[str]

    async def response(self) -> Response:
        data, call = json.loads(encode(json_of(self.key, "key"))), self.facts.call
        shown = [("history", each) for each in self.histories]
        shown += [("all", each) for each in self.complete]
        context: dict[str, Any] = {
            "operator": self.operator,
            "data": data,
            "key_json": self.key,
            "texts": texts_of(self.operator["key"], data),
            "epochs": self.epochs,
            "hidden": [("key", self.key), *shown],
            "live": self._to(epoch=None),
        }
        result, context["problem"] = await tried(call, self._read(data))
        if result is not None:
            view, found = result
            cards = [await self._card(state, own) for state, own in found["states"].items()]
            began = view.processing_time.isoformat()
            context |= {"found": found, "began": began, "states": cards}
        problem = context["problem"]
        status = problem.status if problem else 200
        return self.facts.page("key", [self.operator["operator"]], status, **context)

    def _to(self, **changed: Any) -> str:
        """Return the address of this page with other parameters."""
        chosen = {"epoch": self.epochs.chosen, "history": self.histories, "all": self.complete}
        given = {"key": self.key, **chosen, **changed}
        alias = self.facts.job.alias
        return Addresses(self.facts.call).to(alias, self.operator["operator"], **given)

    async def _read(self, data: Any) -> tuple[View, dict[str, Any]]:
        view = await self.epochs.view(self.facts)
        found = await states_of_key(self.facts.call, view, self.operator["operator"], data)
        return view, json.loads(encode(found))

    async def _card(self, state: str, own: dict[str, Any]) -> dict[str, Any]:
        states = self.operator["states"]
        described = next((each for each in states if each["state"] == state), None)
        has_rows = described is not None and described["kind"] in ("map", "list")
        value = own["value"]
        is_absent = value is None or (has_rows and not value)
        lines = [] if is_absent else value_lines(value)
        shown = lines
        if state not in self.complete:
            shown = [cut(line, _LINE_LENGTH) for line in lines[:_LINES]]
        is_open = state in self.histories
        others = [each for each in self.histories if each != state]
        card = {
            "name": state,
            "type": described["type"] if described else "",
            "has_rows": has_rows,
            "lines": None if is_absent else shown,
            "line_count": len(lines),
            "more": None if shown == lines else self._to(all=[*self.complete, state]),
            "is_cut": own["is_cut"],
            "row_count": 0 if value is None or not has_rows else len(value),
            "expires": own["expires"],
            "is_open": is_open,
            "history_href": self._to(history=others if is_open else [*self.histories, state]),
        }
        return card | await self._history(state) if is_open else card

    async def _history(self, state: str) -> dict[str, Any]:
        call, key = self.facts.call, json_of(self.key, "key")
        read = partial(history_of, self.facts.job, self.operator["operator"], state, key, WHOLE)
        found, problem = await tried(call, call.served.admission.run("histories", read, call))
        found = found or KeyHistory(msgspec.Raw(b"[]"), is_cut=False)
        changes = json.loads(bytes(found.entries))
        values = [each["value"] for each in changes]
        are_numbers = all(own is None or _is_number(own) for own in values)
        return {
            "history_problem": problem,
            "changes": changes[::-1],
            "numbers": values if are_numbers and any(map(_is_number, values)) else None,
            "is_history_cut": found.is_cut,
        }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
