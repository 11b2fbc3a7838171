"""A TTL that is turned on or off, is shorter or longer, or has another clock, in the next run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.keygroup import key_group
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.maintenance.verify.verify import verify
from statekit.query.rows.reader import CheckpointReader
from statekit.state import base
from statekit.testing import Harness
from statekit.testing.process_model import ProcessModel
from tests.support.effort import SOAK
from tests.support.instants import at
from tests.support.offsets import records_read
from tests.support.ttl_driver import (
    COUNT,
    LATENESS,
    WHATS,
    Do,
    Op,
    by_key,
    do,
    rows_left,
    states_that_expire,
)

KEYS = "ab"


class Step(NamedTuple):
    """An epoch: records, or time that passes by a clock."""

    what: str
    seconds: int
    keys: str
    ops: tuple[Op, ...]


class Phase(NamedTuple):
    """A run with a TTL."""

    ttl: sk.TTL | None
    shards: int
    steps: list[Step]


class ChangingModel:
    """A model of the states that lives on when the TTL changes.

    Rows that had expired in the last epoch are gone. If a TTL was turned on, or moved to another
    clock, all others are written in the first epoch by that clock.
    """

    def __init__(self) -> None:
        self._ttl: sk.TTL | None = None
        self._model: ProcessModel | None = None
        self._not_begun: list[Any] = []

    def restart(self, ttl: sk.TTL | None) -> None:
        before, model = self._model, ProcessModel(states_that_expire(ttl))
        begins = ttl is not None and (self._ttl is None or self._ttl.clock != ttl.clock)
        if begins or ttl is None:
            self._not_begun = []
        if before is not None:
            for name in ("watermark", "processing_time", "_largest", "_epoch"):
                setattr(model, name, getattr(before, name))
            for key, had in before._keys.items():
                before._entered(key)
                for name, state in model._entered(key).states.items():
                    cells = dict(had.states[name]._present())
                    kept = {"_ttl": state._ttl, "clocks": state.clocks, "_cells": cells}
                    vars(state).update({**vars(had.states[name]), **kept})
                    for cell in cells.values():
                        if (begins and name != "kept") or ttl is None:
                            cell.written = None
                    if begins and name != "kept":
                        self._not_begun += cells.values()
        self._model, self._ttl = model, ttl

    def send(self, records: list[Do]) -> Any:
        assert self._model is not None
        self._begin(self.next_watermark, self._model.processing_time)
        return self._model.send(records=records)["outputs"]

    def advance_watermark(self, to: dt.datetime) -> None:
        assert self._model is not None
        self._begin(to, self._model.processing_time)
        self._model.advance_watermark(to)

    def advance_processing_time(self, to: dt.datetime) -> None:
        assert self._model is not None
        self._begin(self.next_watermark, to)
        self._model.processing_time = to
        self.send([])

    def _begin(self, watermark: dt.datetime | None, processing_time: dt.datetime) -> None:
        """Let the rows that were there be written now, if the clock of their TTL has begun."""
        now = processing_time
        if self._ttl is not None and self._ttl.clock == "event":
            if watermark is None:
                return
            now = watermark
        for cell in self._not_begun:
            if cell.written is None:
                cell.written = now
        self._not_begun = []

    @property
    def next_watermark(self) -> dt.datetime | None:
        """The watermark of an epoch without anything else."""
        assert self._model is not None
        reached, largest = self._model.watermark, self._model._largest
        if largest is None:
            return reached
        largest -= dt.timedelta(seconds=LATENESS)
        return largest if reached is None else max(reached, largest)

    def state(self, name: str, key: str) -> Any:
        assert self._model is not None
        return self._model.state(name, key)


def ops() -> st.SearchStrategy[Op]:
    number = st.integers(0, 2)

    def of(state: str) -> st.SearchStrategy[Op]:
        return st.builds(Op, st.just(state), st.sampled_from(WHATS[state]), number, number)

    return st.sampled_from(sorted(WHATS)).flatmap(of)


TTLS = st.none() | st.builds(
    sk.TTL,
    st.sampled_from(["8 s", "20 s", "1 minute"]),
    st.sampled_from(["event", "processing"]),
    st.sampled_from(["write", "read"]),
)
STEPS = st.builds(
    Step,
    st.sampled_from(["send", "send", "event", "processing"]),
    st.integers(0, 30),
    st.text(KEYS, min_size=1, max_size=2),
    st.lists(ops(), min_size=1, max_size=6).map(tuple),
)
PHASES = st.lists(
    st.builds(Phase, TTLS, st.integers(1, 3), st.lists(STEPS, min_size=1, max_size=4)),
    min_size=2,
    max_size=4,
)


def check(phases: list[Phase], swept: int) -> None:
    """Compare all that is read, in every epoch, with the model, and find nothing left in the end.

    Parameters:
        swept: the rows that a sweep may process in an epoch.
    """
    model, harness, now = ChangingModel(), None, 0
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "SWEPT_MIN", swept)
        for number, phase in enumerate(phases):
            function = states_that_expire(phase.ttl)
            if harness is None:
                harness = Harness(function, parallelism=phase.shards)
            else:
                harness.checkpoint(Path(place) / str(number))
                harness = Harness.restore(
                    function, Path(place) / str(number), parallelism=phase.shards
                )
                harness._now_us = now * 1_000_000
            model.restart(phase.ttl)
            for step in phase.steps:
                now = check_step(harness, model, step, now)
        if model._ttl is not None:
            check_that_all_expires(harness, now)


def check_step(harness: Any, model: ChangingModel, step: Step, now: int) -> int:
    """Run an epoch in both, compare, and return the processing time."""
    if step.what == "send":
        second = now + step.seconds
        records = [do(key, second, *step.ops) for key in step.keys]
        assert by_key(harness.send(*records)) == by_key(model.send(records))
    elif step.what == "event":
        reached, to = model.next_watermark, at(now + step.seconds)
        if reached is None or to > reached:
            harness.advance_watermark(to)
            model.advance_watermark(to)
    else:
        now += 1 + step.seconds
        harness.advance_processing_time(at(now))
        model.advance_processing_time(at(now))
    if harness.epoch is not None:
        rows_left(harness)  # compares the sizes that are told
        for key in KEYS:
            for name in WHATS:
                assert harness.state(name, key) == model.state(name, key), (name, key)
    return now


def check_that_all_expires(harness: Any, now: int) -> None:
    for hours in range(1, 3):
        harness.advance_watermark(at(now + hours * 3600))
        harness.advance_processing_time(at(now + hours * 3600))
    for more in range(60):
        if set(rows_left(harness)) <= {"kept"}:
            return
        harness.advance_processing_time(at(now + 3 * 3600 + more))
    raise AssertionError(f"rows that expired are left: {rows_left(harness)}")


@settings(max_examples=600 if SOAK else 40, deadline=None)
@given(phases=PHASES, swept=st.sampled_from([1, 2, 3, 10_000]))
def test_states_expire_as_plain_values_would_when_their_ttl_changes(
    phases: list[Phase], swept: int
) -> None:
    check(phases, swept)


# ----------------------------------------------------------------------- readers, shards, downtime


class Visit(NamedTuple):
    user: str


HALF_HOUR = sk.TTL("30 minutes")
MINUTE = 60_000_000


def visits(ttl: sk.TTL | None) -> sk.Job:
    """Counts the visits of a user, with a TTL or without."""

    def count(
        record: Visit,
        visits: Annotated[sk.ValueState[int], ttl],
        pages: Annotated[sk.MapState[int, int], ttl],
    ) -> Iterator[tuple[str, int]]:
        visits.update((visits.get() or 0) + 1)
        pages[len(pages)] = 1
        yield record.user, visits.get() or 0

    job = sk.Job("visits")
    job.source("seen", Visit).process(sk.process(key="user")(count)).sink("counts")
    return job


def run(home: Path, ttl: sk.TTL | None, users: str, minutes: float, **options: Any) -> list[Any]:
    """Run an epoch over records that follow the earlier ones, and return the outputs."""
    read = 0
    if options.get("from_savepoint") is not None:
        read = 3
    elif home.exists():
        repository = Repository(home)
        last = options.get("from_epoch", repository.latest_epoch())
        read = 0 if last is None else records_read(repository.manifest(last), "seen")
    records = [Visit("nobody")] * read + [Visit(user) for user in users]
    return visits(ttl).run(
        {"seen": records},
        checkpoint=home,
        clock=lambda: round(minutes * MINUTE),
        drain=False,
        **options,
    )["counts"]


def read_everywhere(home: Path) -> dict[str, int]:
    """What all readers find in the last epoch, after a check that it is the same."""
    table = sk.read(home, "count", "visits").read_all().to_pylist()
    found = {row["user"]: row["value"] for row in table}
    with sk.Replica(home) as replica, replica.at() as view:
        assert dict(view.state("count", "visits").items()) == found
        assert view.state("count", "visits").count() == len(found)
        assert {key for key, _ in view.state("count", "pages").items()} == set(found)
    reader = CheckpointReader(home)
    for user in "abc":
        assert reader.get("count", "visits", user) == found.get(user)
    return found


def feed_table(home: Path, *, before: bool) -> dict[str, int]:
    """The table that a consumer of the feed of a state has after all epochs."""
    table: dict[str, int] = {}
    with sk.feed(home, "count", "visits", before=before) as feed:
        for epoch in feed:
            if epoch.kind == "snapshot":
                table.clear()
            for change in epoch:
                if change.op == "upsert":
                    table[change.key] = change.value
                else:
                    table.pop(change.key, None)
    return table


@pytest.mark.parametrize("swept", [1, 10_000], ids=["a scan that goes on", "a scan at once"])
def test_all_readers_agree_about_rows_of_before_a_ttl_whether_a_scan_has_reached_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swept: int
) -> None:
    monkeypatch.setattr(base, "SWEPT_MIN", swept)
    home = tmp_path / "c"
    run(home, None, "abc", 0)
    run(home, HALF_HOUR, "a", 100, parallelism=3)
    assert read_everywhere(home) == {"a": 2, "b": 1, "c": 1}
    (row,) = sk.read(home, "count", "visits", key="b").read_all().to_pylist()
    assert row["written"] == dt.datetime(1970, 1, 1, 1, 40, tzinfo=dt.UTC)
    assert row["expires"] == dt.datetime(1970, 1, 1, 2, 10, tzinfo=dt.UTC)
    run(home, HALF_HOUR, "a", 129.9)
    assert read_everywhere(home) == {"a": 3, "b": 1, "c": 1}
    for minutes in (130, 131, 132):
        run(home, HALF_HOUR, "a", minutes, parallelism=2)
        assert read_everywhere(home) == {"a": 3 + minutes - 129}
        assert feed_table(home, before=True) == {"a": 3 + minutes - 129}
    for minutes in range(133, 150):
        run(home, HALF_HOUR, "a", minutes)
    assert feed_table(home, before=False).keys() == {"a"}, "the scan has deleted the others"
    assert verify(Repository(home)).is_intact


def test_a_ttl_that_is_turned_on_rewrites_no_row_and_adds_a_row_per_key_group(
    tmp_path: Path,
) -> None:
    home = tmp_path / "c"
    keys = [chr(97 + number) for number in range(26)]
    run(home, None, "".join(keys) * 30, 0)
    before = Repository(home).manifest(0).operators["count"]
    run(home, HALF_HOUR, "", 1)
    run(home, HALF_HOUR, "a", 2)
    after = Repository(home).manifest(1).operators["count"]
    groups = len({key_group(key, 128) for key in keys})
    assert before.rows == {"visits": 26, "pages": 26 * 30}
    written = sum(shard.chain.rows for shard in after.shards) - sum(
        shard.chain.rows for shard in before.shards
    )
    assert written <= 2 * groups + 6


READS: dict[str, tuple[Any, Callable[[Any], object], Callable[[Any], object]]] = {
    "value": (sk.ValueState[int], lambda state: state.update(1), lambda state: state.get()),
    "list": (sk.ListState[int], lambda state: state.extend([1, 2]), list),
    "map": (sk.MapState[str, int], lambda state: state.update(a=1, b=2), lambda state: state["a"]),
    "map items": (sk.MapState[str, int], lambda state: state.update(a=1, b=2), dict),
    "reducing": (
        Annotated[sk.ReducingState[int], sk.Reduce(sum)],
        lambda state: state.add(1),
        lambda state: state.get(),
    ),
    "aggregating": (
        Annotated[sk.AggregatingState[int, int, int], COUNT],
        lambda state: state.add(1),
        lambda state: state.get(),
    ),
}
READ_TTL = sk.TTL("10 seconds", refresh="read")


class Use(NamedTuple):
    key: str
    what: str
    at: dt.datetime


@pytest.mark.parametrize("after", ["read", "read twice", "read and clear", "clear"])
@pytest.mark.parametrize(
    "before",
    [None, sk.TTL("1 day", clock="event"), sk.TTL("10 seconds")],
    ids=["none", "event", "same"],
)
@pytest.mark.parametrize("kind", READS)
def test_sizes_are_exact_when_reads_stamp_rows_of_before_a_ttl(
    tmp_path: Path, kind: str, before: sk.TTL | None, after: str
) -> None:
    declared, write, read = READS[kind]
    home, uses = tmp_path / "c", [Use(key, "write", at(0)) for key in "ab"]

    def go(seconds: float, ttl: sk.TTL | None) -> None:
        def use(record: Use, state: Any) -> Iterator[int]:
            if record.what == "write":
                write(state)
            elif state:
                for _ in range(record.what.count("read") + record.what.count("twice")):
                    read(state)
                if "clear" in record.what:
                    state.clear()
            yield 1

        use.__annotations__["state"] = Annotated[declared, ttl] if ttl else declared
        job = sk.Job("uses")
        function = sk.process(key="key", event_time="at", lateness="1 hour")(use)
        job.source("uses", Use).process(function).sink("ones")
        clock = round(seconds * 1_000_000)
        job.run({"uses": uses}, checkpoint=home, clock=lambda: clock, drain=False)
        result = verify(Repository(home))
        assert result.is_intact, result

    go(95, before)
    uses += [Use("a", after, at(1)), Use("c", after, at(1))]
    go(100, READ_TTL)
    uses += [Use("a", after, at(2))]
    go(105, READ_TTL)
    for seconds in (112, 130, 131):
        uses += [Use("c", "read", at(3))]
        go(seconds, READ_TTL)
    assert sk.read(home, "use", "state").read_all().num_rows == 0
    repository = Repository(home)
    sizes = repository.manifest(repository.latest_epoch() or 0).operators["use"]
    assert (sizes.rows["state"], sizes.bytes["state"]) == (0, 0)


def test_sizes_are_exact_when_aggregates_stamp_rows_of_before_a_ttl(tmp_path: Path) -> None:
    home = tmp_path / "c"
    uses = [Use(key, key, at(0)) for key in "ab"]

    def go(seconds: int, ttl: sk.TTL | None) -> None:
        job = sk.Job("uses")
        aggregates: dict[str, Any] = {
            "what": sk.Collect("what"),
            "most": sk.Max("what"),
            "count": sk.Count(),
        }
        job.source("uses", Use).aggregate(key="key", ttl=ttl, name="all", **aggregates).sink("all")
        clock = seconds * 1_000_000
        job.run({"uses": uses}, checkpoint=home, clock=lambda: clock, drain=False)
        assert verify(Repository(home)).is_intact

    go(0, None)
    for seconds in (100, 105, 112, 130, 131):
        uses.append(Use("a" if seconds < 130 else "c", "c", at(seconds)))
        go(seconds, READ_TTL)
    repository = Repository(home)
    sizes = repository.manifest(repository.latest_epoch() or 0).operators["all"]
    assert sizes.rows == {"what": 2, "most": 1, "count": 1}, "those of c"


@pytest.mark.parametrize("key_groups", [None, 7])
def test_rows_of_before_a_ttl_expire_after_a_savepoint_or_other_key_groups(
    tmp_path: Path, key_groups: int | None
) -> None:
    home = tmp_path / "c"
    run(home, None, "ab", 0)
    run(home, HALF_HOUR, "a", 100)
    if key_groups is None:
        write_savepoint(Repository(home), "saved")
        saved, home = home / "savepoints" / "saved", tmp_path / "d"
        run(home, HALF_HOUR, "a", 101, from_savepoint=saved)
    else:
        rewrite_checkpoint(Repository(home), key_groups=key_groups)
        run(home, HALF_HOUR, "a", 101)
    assert read_everywhere(home) == {"a": 3, "b": 1}
    run(home, HALF_HOUR, "a", 130)
    assert read_everywhere(home) == {"a": 4}
    assert verify(Repository(home)).is_intact


def test_a_rollback_to_before_a_ttl_turns_it_on_again(tmp_path: Path) -> None:
    home = tmp_path / "c"
    run(home, None, "ab", 0)
    run(home, HALF_HOUR, "a", 100)
    run(home, HALF_HOUR, "a", 140)
    assert read_everywhere(home) == {"a": 1}
    run(home, HALF_HOUR, "c", 200, from_epoch=0)
    assert read_everywhere(home) == {"a": 1, "b": 1, "c": 1}
    run(home, HALF_HOUR, "c", 230)
    assert read_everywhere(home) == {"c": 1}


def test_an_epoch_that_turns_a_ttl_on_reads_the_same_when_it_runs_again(tmp_path: Path) -> None:
    home = tmp_path / "c"
    run(home, None, "ab", 0)

    def fails(records: list[Any], epoch: int) -> None:
        raise RuntimeError("the sink is down")

    with pytest.raises(sk.ProcessError, match="the sink is down"):
        run(home, HALF_HOUR, "a", 100, outputs={"counts": fails})
    assert read_everywhere(home) == {"a": 1, "b": 1}
    run(home, HALF_HOUR, "a", 120)
    (row,) = sk.read(home, "count", "visits", key="b").read_all().to_pylist()
    assert row["expires"] == dt.datetime(1970, 1, 1, 2, 10, tzinfo=dt.UTC)
    run(home, HALF_HOUR, "c", 130)
    assert read_everywhere(home) == {"c": 1}


@pytest.mark.parametrize("downtime", [True, False])
def test_downtime_ages_rows_only_if_it_counts(tmp_path: Path, downtime: bool) -> None:
    left = {"c": 1} if downtime else {"a": 1, "b": 1, "c": 1}
    home, ttl = tmp_path / "c", sk.TTL("30 minutes", downtime=downtime)
    run(home, ttl, "ab", 0)
    run(home, ttl, "c", 24 * 60)
    assert read_everywhere(home) == left
    assert feed_table(home, before=True) == left


def test_only_the_time_within_runs_counts_without_downtime(tmp_path: Path) -> None:
    home, ttl = tmp_path / "c", sk.TTL("30 minutes", downtime=False)
    times = iter([0, 10, 20])
    run(home, ttl, "abc", 0, epoch_size=1)
    records = [Visit("nobody")] * 3 + [Visit(user) for user in "bcc"]
    visits(ttl).run(
        {"seen": records},
        checkpoint=home,
        clock=lambda: (6000 + next(times)) * MINUTE,
        epoch_size=1,
        drain=False,
    )
    assert read_everywhere(home) == {"a": 1, "b": 2, "c": 3}
    (row,) = sk.read(home, "count", "visits", key="a").read_all().to_pylist()
    assert row["expires"] == dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=6030)
    run(home, ttl, "c", 9000)  # 20 minutes have passed in the run before
    assert read_everywhere(home) == {"a": 1, "b": 2, "c": 4}
    times = iter([0, 10])
    visits(ttl).run(
        {"seen": [Visit("nobody")] * 7 + [Visit("c")] * 2},
        checkpoint=home,
        clock=lambda: (10_000 + next(times)) * MINUTE,
        epoch_size=1,
        drain=False,
    )
    assert read_everywhere(home) == {"c": 6}, "a and b were written 30 minutes ago"


def test_downtime_that_counts_again_does_not_change_what_was_left_out(tmp_path: Path) -> None:
    home = tmp_path / "c"
    run(home, sk.TTL("30 minutes", downtime=False), "ab", 0)
    run(home, sk.TTL("30 minutes", downtime=False), "", 1000)
    run(home, sk.TTL("30 minutes", downtime=False), "c", 1001)
    run(home, HALF_HOUR, "c", 1030)
    assert read_everywhere(home) == {"a": 1, "b": 1, "c": 2}
    run(home, HALF_HOUR, "c", 1031)
    assert read_everywhere(home) == {"c": 3}


def test_a_ttl_by_event_time_has_no_downtime() -> None:
    with pytest.raises(sk.StateTypeError, match="no downtime counts: leave out downtime="):
        sk.TTL("1 hour", clock="event", downtime=False)
    with pytest.raises(sk.StateTypeError, match="use True or False"):
        sk.TTL("1 hour", downtime="no")  # type: ignore[arg-type]


def test_time_after_which_expired_rows_come_back_does_not_exist(tmp_path: Path) -> None:
    """A TTL that is turned off, made longer or moved to another clock leaves expired rows so."""
    for number, later in enumerate([None, sk.TTL("10 days")]):
        home = tmp_path / str(number)
        run(home, HALF_HOUR, "a", 0)
        run(home, HALF_HOUR, "b", 30)
        run(home, later, "c", 31)
        assert read_everywhere(home) == {"b": 1, "c": 1}
        assert run(home, later, "a", 32) == [("a", 1)]
