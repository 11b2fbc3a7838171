"""Facts of a job that its pages show: its operators, its last epochs, its age and its charts."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from statekit.checkpoint.epoch_id import EpochId
from statekit.codec.json_form import instant_text
from statekit.job.mirror_options import parted
from statekit.query.replica.view import View
from statekit.server.answers.problems import Problem
from statekit.server.dashboard.charts import Chart, Unit, Values, chart
from statekit.server.dashboard.page_answers import known_epoch, page
from statekit.server.dashboard.texts import count, duration, short_count, size
from statekit.server.jobs.served_job import ServedJob
from statekit.server.jobs.wanted import Wanted
from statekit.server.routes.call import RouteCall
from statekit.server.routes.described import described
from statekit.server.routes.job_routes import epoch_items
from statekit.timestamp import instant

FAILURE_MAX = 300
"""How much of the message of a failure is shown, in characters."""

_WAIT_S = 5.0
"""Longest wait for another epoch. Then the page is sent again with its age."""

_PAUSE_MS = 1000
"""Pause of a browser between two requests for news."""

_RATE_EPOCHS = 10
"""Number of the last epochs from which rates follow."""

_QUIET_MIN_S, _QUIET_UNKNOWN_S, _QUIET_INTERVALS = 120.0, 300.0, 10
_ENDS = "9999"
_LAG_MAX_S = 90 * 86_400
_LINES_MAX = 6

Epoch = dict[str, Any]
"""The facts of an epoch that a token may read, as in the answer of `/epochs`."""


def seconds_of(text: str) -> float:
    """Return the seconds since 1970 of a time."""
    return dt.datetime.fromisoformat(text).timestamp()


def _began(epoch: Epoch) -> float:
    return seconds_of(epoch["processing_time"])


def _committed(epoch: Epoch) -> float:
    return seconds_of(epoch["committed_at"])


@dataclass(frozen=True)
class JobFacts:
    """Facts of a job after an epoch, as far as a token may read them.

    Parameters:
        call: the request for a page.
        job: the served job.
        view: the epoch.
        operators: the description of the job.
        epochs: the last epochs, in order.
    """

    call: RouteCall
    job: ServedJob
    view: View
    operators: list[dict[str, Any]]
    epochs: list[Epoch]

    @cached_property
    def lag_s(self) -> float:
        """Seconds since the epoch began."""
        lag_ms: int = self.job.facts(self.view)["lag_ms"]
        return lag_ms / 1000

    @property
    def interval_s(self) -> float | None:
        """Mean seconds between the last epochs; None if there is one alone."""
        recent = self.epochs[-_RATE_EPOCHS:]
        if len(recent) < 2:
            return None
        return (_committed(recent[-1]) - _committed(recent[0])) / (len(recent) - 1)

    @property
    def quiet_s(self) -> float | None:
        """Seconds without an epoch; None if that is usual. After the end of event time no epoch
        follows.
        """
        marks = [each["watermark"] for each in self.operators if each["watermark"]]
        if marks and all(mark.startswith(_ENDS) for mark in marks):
            return None
        interval = self.interval_s
        usual = _QUIET_UNKNOWN_S
        if interval is not None:
            usual = max(_QUIET_MIN_S, _QUIET_INTERVALS * interval)
        return self.lag_s if self.lag_s > usual else None

    @property
    def records(self) -> list[int]:
        """Records that each epoch read from sources."""
        return [self._source_records(epoch) for epoch in self.epochs]

    @property
    def rows(self) -> int | None:
        """Rows of states, timers and buffered records after the last epoch."""
        return _sum(self.epochs[-1], "rows") if self.epochs else None

    @property
    def bytes(self) -> int | None:
        """Bytes of the same."""
        return _sum(self.epochs[-1], "bytes") if self.epochs else None

    def of(self, operator: str, name: str) -> list[Any]:
        """Return a number of an operator in each epoch; None where it has none."""
        return [each["operators"].get(operator, {}).get(name) for each in self.epochs]

    def operator(self, name: str) -> dict[str, Any]:
        """Return the description of an operator.

        Raises:
            Problem: there is none that may be read.
        """
        found = next((each for each in self.operators if each["operator"] == name), None)
        if found is None:
            raise Problem(404, "not_found", f"job {self.job.alias} has no operator {name!r:.200}")
        return found

    def page(
        self, template: str, place: Sequence[str] = (), status: int = 200, **context: Any
    ) -> Response:
        """Return a page of the job, which asks for news.

        Parameters:
            place: operator and state of the page.
            context: for the template.
        """
        live = {"known": str(self.view.id), "pause": _PAUSE_MS, "facts": self}
        return page(self.call, template, [self.job.alias, *place], status, **live, **context)

    def _source_records(self, epoch: Epoch) -> int:
        if by_source := epoch["records_by_source"]:
            return sum(by_source.values())
        names = {each["operator"] for each in self.operators}
        found: dict[str, int] = {}
        for own in epoch["operators"].values():
            for stream, records in own["records_by_input"].items():
                if stream not in names and not stream.endswith((".late", ".errors")):
                    found[stream] = max(found.get(stream, 0), records)
        return sum(found.values())

    # ------------------------------------------------------------------------------ for pages

    def numbers(self) -> list[tuple[str, str, bool]]:
        """Return names and texts of the most important numbers, and whether each is a warning."""
        recent = self.epochs[-_RATE_EPOCHS:]
        span = _committed(recent[-1]) - _committed(recent[0]) if recent else 0.0
        records = sum(self.records[-_RATE_EPOCHS:][1:])
        last = recent[-1] if recent else None
        took = None if last is None else _committed(last) - _began(last)
        late, failed = (sum(_sum(epoch, field) for epoch in recent) for field in ("late", "failed"))
        return [
            ("epoch", count(self.view.epoch), False),
            ("began", f"{duration(self.lag_s)} ago", self.quiet_s is not None),
            ("records per second", short_count(records / span if span else None), False),
            ("interval of epochs", duration(self.interval_s), False),
            ("duration", duration(took), False),
            ("rows of state and timers", count(self.rows), False),
            ("bytes of state and timers", size(self.bytes), False),
            (f"late, last {len(recent)} epochs", count(late), False),
            *([(f"failed, last {len(recent)} epochs", count(failed), True)] if failed else []),
        ]

    def mirrors(self) -> list[dict[str, Any]]:
        """Return the tables of the mirrors whose states a token may all read, for a table."""
        kinds = {"running": "good", "stopped": "wait", "dead": "bad"}
        may_read = partial(self.call.token.may_read, self.job.alias)
        return [
            {
                "name": mirror.name,
                "mode": mirror.mode,
                "state": state,
                "place": place,
                "epoch": mirror.epoch,
                "lag": mirror.lag(self.view.epoch),
                "status": mirror.status,
                "kind": kinds[mirror.status],
            }
            for mirror in self.job.mirrors
            if all(may_read(*parted(each)) for each in mirror.places)
            for state, place in mirror.places.items()
        ]

    def failure(self) -> dict[str, Any] | None:
        """Return the last failure of the job. Its message, which may have values of records, is for
        tokens that may read the whole job.
        """
        failure = self.job.last_failure
        if failure is None:
            return None
        told = failure.message[:FAILURE_MAX] if self.call.token.may_read(self.job.alias) else None
        return {
            "at": instant_text(instant(failure.at_us)),
            "epoch": failure.epoch,
            "error": failure.error,
            "message": told,
            "is_over": self.view.epoch >= failure.epoch,
        }

    def charts(self) -> list[Chart]:
        """Return the charts of the last epochs."""
        if not self.epochs:
            return []
        names = [each["operator"] for each in self.operators]
        by = ", by operator"
        if len(names) > _LINES_MAX:
            by = f", the {_LINES_MAX} largest of {len(names)} operators"
        began = [_began(epoch) for epoch in self.epochs]

        def lines(
            read: Callable[[dict[str, Any], float], float | None],
        ) -> list[tuple[str, Values]]:
            found: list[tuple[str, Values]] = []
            for name in names:
                own = [each["operators"].get(name) for each in self.epochs]
                values = [each and read(each, at) for each, at in zip(own, began, strict=True)]
                if any(value is not None for value in values):
                    found.append((name, values))
            return _largest(found)

        def over_time(
            title: str, shown: list[tuple[str, Values]], unit: Unit = "count"
        ) -> list[Chart]:
            return [chart(title, began, shown, unit)] if shown else []

        failed = [_sum(each, "failed") for each in self.epochs]
        lag = lines(lambda own, at: _lag(own, at))
        is_lag = all(each is None or abs(each) < _LAG_MAX_S for _, own in lag for each in own)
        marks = over_time("Watermark lag", lag, "seconds")
        if not is_lag:
            marks = over_time("Watermark", lines(lambda own, _: _mark(own)), "instant")
        return [
            *over_time(f"Records in{by}", lines(lambda own, _: own["records_in"])),
            *over_time("Time of epochs", self._times(began), "seconds"),
            *marks,
            *over_time(f"Bytes written{by}", lines(lambda own, _: own["bytes_written"]), "bytes"),
            *over_time("Late records", [("late", [_sum(each, "late") for each in self.epochs])]),
            *over_time("Failed records", [("failed", failed)] if any(failed) else []),
            *over_time(f"Bytes of state{by}", lines(lambda own, _: own["bytes"]), "bytes"),
        ]

    def flow(self, operator: str) -> Chart:
        """Return the chart of the records of an operator."""
        fields = (
            ("in", "records_in"),
            ("out", "records_out"),
            ("late", "late"),
            ("failed", "failed"),
        )
        shown = [(name, self.of(operator, field)) for name, field in fields]
        if not any(shown[-1][1]):
            shown.pop()
        return chart("Records in and out", [_began(each) for each in self.epochs], shown)

    def growth(self, operator: str, state: str) -> list[Chart]:
        """Return the charts of the size of a state. The epochs have the sizes of its operator."""
        began = [_began(each) for each in self.epochs]
        sizes = [(each or {}).get(state, {}) for each in self.of(operator, "states")]
        return [
            chart("Rows", began, [("rows", [each.get("rows") for each in sizes])]),
            chart("Bytes", began, [("bytes", [each.get("bytes") for each in sizes])], "bytes"),
        ]

    def _times(self, began: list[float]) -> list[tuple[str, Values]]:
        intervals = [None, *(b - a for a, b in itertools.pairwise(began))]
        took = [_committed(epoch) - at for epoch, at in zip(self.epochs, began, strict=True)]
        return [("interval", intervals), ("duration", took)]


async def facts_of_job(
    call: RouteCall, job: ServedJob, view: View, epochs: int, sized: str | None = None
) -> JobFacts:
    """Return the facts of a job after an epoch.

    Parameters:
        epochs: limit of the last epochs.
        sized: the operator whose states' sizes the epochs have.
    """
    may_read = partial(call.token.may_read, job.alias)
    operators: list[dict[str, Any]] = [{**each} for each in described(view, may_read)]
    for each in operators:
        broadcasts = [f"{stream} (broadcast)" for stream in each["broadcasts"]]
        each["streams"] = [*each["inputs"], *broadcasts]
        each["has_ended"] = (each["watermark"] or "").startswith(_ENDS)
    facts = await run_in_threadpool(job.history.until, view.manifest, epochs)
    return JobFacts(call, job, view, operators, epoch_items(may_read, view, facts, sized))


async def last_facts(call: RouteCall, epochs: int, sized: str | None = None) -> JobFacts:
    """Return the facts of the job of a page after the last epoch. Wait a while for another epoch
    than that which the browser shows. For the parameters see `facts_of_job`.
    """
    known, view = EpochId.of_text(known_epoch(call) or ""), call.job.last()
    if known is not None:
        view = await call.job.other_than(Wanted.exactly(known), _WAIT_S, call.wait)
    return await facts_of_job(call, call.job, view, epochs, sized)


class ShownEpochs(NamedTuple):
    """The epochs that a page can show, and the one that it shows.

    Parameters:
        readable: those that can be read, in order.
        chosen: the one that the user has chosen; None for the last one.
        shown: the one that the page shows.
    """

    readable: list[int]
    chosen: int | None
    shown: int

    @classmethod
    def of(cls, facts: JobFacts, chosen: int | None, shown: int | None = None) -> Self:
        """Return the epochs of a page.

        Parameters:
            chosen: by the user; the last readable one before it counts.
            shown: the epoch that the page shows already; None for the last one.
        """
        readable = facts.job.readable_epochs
        if chosen is not None and readable[0] <= chosen <= readable[-1]:
            chosen = max(epoch for epoch in readable if epoch <= chosen)
        last = facts.view.epoch if shown is None else shown
        return cls(readable, chosen, last if chosen is None else chosen)

    @property
    def newer(self) -> int:
        """Number of epochs after the one that is shown."""
        return sum(epoch > self.shown for epoch in self.readable)

    async def view(self, facts: JobFacts) -> View:
        """Return the view of the epoch that a page shows.

        Raises:
            Problem: it can no longer be read.
        """
        if self.chosen is None:
            return facts.view
        return await facts.job.view(Wanted(epoch=self.chosen))


def _sum(epoch: Epoch, name: str) -> int:
    return sum(own[name] for own in epoch["operators"].values())


def _mark(own: dict[str, Any]) -> float | None:
    mark = own["watermark"]
    return None if mark is None or mark.startswith(_ENDS) else seconds_of(mark)


def _lag(own: dict[str, Any], began: float) -> float | None:
    mark = _mark(own)
    return None if mark is None else began - mark


def _largest(lines: list[tuple[str, Values]]) -> list[tuple[str, Values]]:
    """Return the lines with the largest values, in their order."""

    def most(line: tuple[str, Values]) -> float:
        return max(value for value in line[1] if value is not None)

    kept = {name for name, _ in sorted(lines, key=most, reverse=True)[:_LINES_MAX]}
    return [line for line in lines if line[0] in kept]
