"""State of shards: declared, kept, handed out and given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.manifest import ShardReport
from statekit.checkpoint.repository import Repository
from statekit.keygroup import group_range
from statekit.testing import Harness, states

BACKENDS: tuple[Literal["memory", "rocksdb"], ...] = ("memory", "rocksdb")
BOTH = pytest.mark.parametrize("backend", BACKENDS)


class Event(NamedTuple):
    user: str
    value: int


class Sum:
    """A plain object that sums up, with a state that can be split and merged."""

    def __init__(self) -> None:
        self.total = 0
        self.users: set[str] = set()

    def snapshot_state(self) -> tuple[int, frozenset[str]]:
        return self.total, frozenset(self.users)

    def restore_state(self, state: tuple[int, frozenset[str]]) -> None:
        self.total, self.users = state[0], set(state[1])


@sk.process(key="user")
def count(
    event: Event,
    total: sk.ValueState[int],
    seen: Annotated[sk.OperatorState[int], sk.Default(0)],
    log: sk.OperatorListState[str],
    sums: Sum,
) -> Iterator[tuple[str, int, int]]:
    if event.value < 0:
        raise ValueError("less than nothing")
    total.update((total.get() or 0) + event.value)
    seen.update((seen.get() or 0) + 1)
    log.append(event.user)
    sums.total += event.value
    sums.users.add(event.user)
    yield event.user, total.get() or 0, seen.get() or 0


EVENTS = [Event(user, value) for value, user in enumerate("abcdeabcfgh")]


@BOTH
@pytest.mark.parametrize("parallelism", [1, 3])
def test_each_shard_has_one_state_whatever_the_key(
    backend: Literal["memory", "rocksdb"], parallelism: int
) -> None:
    harness = Harness(count, parallelism=parallelism, backend=backend)
    for event in EVENTS:
        harness.send(event)
    by_shard: list[list[Event]] = [[] for _ in range(parallelism)]
    for event in EVENTS:
        by_shard[harness.shard_of(event.user)].append(event)
    assert harness.operator_state("seen") == [len(events) for events in by_shard]
    assert harness.operator_state("log") == [[e.user for e in events] for events in by_shard]
    assert harness.operator_state("sums") == [
        (sum(e.value for e in events), frozenset(e.user for e in events)) for events in by_shard
    ]
    assert harness.state("total", "a") == 0 + 5


@BOTH
def test_it_survives_a_crash_and_is_as_it_was_after_an_epoch_that_failed(
    backend: Literal["memory", "rocksdb"],
) -> None:
    harness = Harness(count, backend=backend)
    harness.send(*EVENTS[:4])
    before = [harness.operator_state(name) for name in ("seen", "log", "sums")]
    with pytest.raises(sk.ProcessError, match="less than nothing"):
        harness.send(Event("a", 1), Event("b", -1))
    assert [harness.operator_state(name) for name in ("seen", "log", "sums")] == before
    harness.crash()
    assert harness.send(Event("a", 1)) == [("a", 1, 5)]
    assert harness.operator_state("seen") == [5]


@BOTH
def test_a_shard_without_records_has_none(backend: Literal["memory", "rocksdb"]) -> None:
    harness = Harness(count, parallelism=16, backend=backend)
    harness.send(Event("a", 1))
    mine = harness.shard_of("a")
    for name, blank in (("seen", 0), ("log", []), ("sums", None)):
        held = harness.operator_state(name)
        assert [n for n, state in enumerate(held) if state != blank] == [mine]


def test_its_rows_lie_with_the_first_key_group_of_the_shard_and_in_files_of_their_own(
    tmp_path: Path,
) -> None:
    harness = Harness(count, parallelism=2, key_groups=8, checkpoint=tmp_path)
    harness.send(*EVENTS)
    repository = Repository(tmp_path)
    for shard in repository.manifest(0).operators["count"].shards:
        keyed, local = shard.files
        assert (keyed.local, local.local) == (False, True)
        assert shard.rows["log"] > 1
        assert shard.rows["seen"] == shard.rows["sums"] == 1
    assert [s.groups for s in repository.manifest(0).operators["count"].shards] == [
        group_range(0, 2, 8),
        group_range(1, 2, 8),
    ]


def test_unchanged_operator_state_is_not_written_again(tmp_path: Path) -> None:
    @sk.process(key="user")
    def look(event: Event, total: sk.ValueState[int], sums: Sum) -> None:
        total.update(event.value)
        if event.value > 10:
            sums.total += event.value

    harness = Harness(look, checkpoint=tmp_path)
    harness.send(Event("a", 11))
    harness.send(Event("a", 1))
    files = [
        [file.local for file in Repository(tmp_path).manifest(n).operators["look"].shards[0].files]
        for n in (0, 1)
    ]
    assert files == [[False, True], [False, True, False]]


def test_rows_and_bytes_of_it_are_counted_exactly(tmp_path: Path) -> None:
    harness = Harness(count, parallelism=3, backend="rocksdb", checkpoint=tmp_path)
    for event in EVENTS:
        harness.send(event)
    last = Repository(tmp_path).latest_epoch()
    assert last is not None
    for number, shard in enumerate(Repository(tmp_path).manifest(last).operators["count"].shards):
        with harness._copy_of(harness._operator, number) as (backend, _):
            counted = backend.sizes()
        assert shard.rows == {
            name: size.rows for name, size in counted.items() if name in shard.rows
        }
        assert shard.bytes == {
            name: size.bytes for name, size in counted.items() if name in shard.bytes
        }


# ------------------------------------------------------------------------------ without a key


@sk.process()
def tally(
    event: Event, ctx: sk.Context, seen: Annotated[sk.OperatorState[int], sk.Default(0)]
) -> Iterator[tuple[int, int]]:
    seen.update((seen.get() or 0) + 1)
    yield event.value, ctx.shard


@BOTH
def test_records_without_a_key_are_dealt_out_in_turn(backend: Literal["memory", "rocksdb"]) -> None:
    harness = Harness(tally, parallelism=3, backend=backend)
    assert sorted(harness.send(*EVENTS)) == [(n, n % 3) for n in range(len(EVENTS))]
    assert harness.operator_state("seen") == [4, 4, 3]
    harness.crash()
    harness.send(*EVENTS[:1])
    assert harness.operator_state("seen") == [5, 4, 3]


def test_an_operator_without_a_key_says_so() -> None:
    job = sk.Job("events")
    job.source("events", Event).process(tally).sink("out")
    assert "operator tally → tuple[int, int]" in str(job)
    assert job.plan.operators[0].record().key == ()
    with pytest.raises(sk.QueryError, match="tally has no key"):
        Harness(tally).shard_of("a")


def test_keyed_state_needs_a_key() -> None:
    with pytest.raises(sk.StateTypeError, match=r"'total'.*kept by key.*@process\(key=\.\.\.\)"):

        @sk.process()
        def no_key(event: Event, total: sk.ValueState[int]) -> None: ...

    with pytest.raises(sk.StateTypeError, match="timers belong to keys"):

        @tally.on_timer
        def due(timer: sk.Timer) -> None: ...

    with pytest.raises(sk.StateTypeError, match="which field has the key to order by"):
        sk.process(event_time="at", ordered=True)


# ------------------------------------------------------------------------------- declarations


class Needs:
    def __init__(self, size: int) -> None: ...
    def snapshot_state(self) -> int:
        return 0

    def restore_state(self, state: int) -> None: ...


class Untyped:
    def snapshot_state(self):  # type: ignore[no-untyped-def]
        return 0

    def restore_state(self, state: int) -> None: ...


class Half:
    def snapshot_state(self) -> int:
        return 0

    def restore_state(self, state: int) -> None: ...
    @staticmethod
    def split_state(state: int, n: int) -> list[int]:
        return [state] * n


WRONG: list[tuple[Any, str]] = [
    (Annotated[sk.OperatorState[int], sk.Redistribute("even")], '"even".*OperatorListState'),
    (Annotated[sk.BroadcastState[str, int], sk.Redistribute("broadcast"), sk.TTL("1 h")], "TTL is"),
    (
        Annotated[
            sk.BroadcastState[str, int], sk.Redistribute(split=lambda s, n: [s] * n, merge=sum)
        ],
        "BroadcastState is the same in all shards",
    ),
    (Annotated[sk.OperatorState[int], sk.TTL("1 hour")], "TTL is no option of OperatorState"),
    (Annotated[sk.ValueState[int], sk.Redistribute("broadcast")], "no option of ValueState"),
    (sk.OperatorState, r"give the types, as in OperatorState\[int\]"),
    (sk.BroadcastState, r"give the types, as in BroadcastState\[str, int\]"),
    (Needs, "Needs is made without arguments.*needs size"),
    (Untyped, "annotate what Untyped.snapshot_state returns"),
    (Half, "Half has one of split_state and merge_states: define both"),
]


@pytest.mark.parametrize(("annotation", "said"), WRONG)
def test_a_declaration_that_cannot_be_is_refused(annotation: Any, said: str) -> None:
    def wrong(event, held):  # type: ignore[no-untyped-def]
        """Annotated below."""

    wrong.__annotations__ = {"event": Event, "held": annotation, "return": None}
    with pytest.raises(sk.StateTypeError, match=said):
        sk.process(key="user")(wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs a rule"),
        ({"rule": "often"}, '"even", "union" or "broadcast"'),
        ({"rule": "even", "merge": sum}, "and not both"),
        ({"split": lambda s, n: [s] * n}, "both functions"),
    ],
)
def test_a_redistribution_is_a_rule_or_two_functions(options: Any, said: str) -> None:
    with pytest.raises(sk.StateTypeError, match=said):
        sk.Redistribute(**options)


def test_broadcast_state_is_only_read_by_records() -> None:
    @sk.process(key="user")
    def convert(event: Event, rates: sk.BroadcastState[str, float]) -> None:
        rates["EUR"] = 1.0

    with pytest.raises(sk.StateTypeError, match=r"only be changed by a function decorated with @"):
        Harness(convert).send(Event("a", 1))
    rates = states(convert, "a")["rates"]
    rates["EUR"] = 2.0  # in a test of the function alone, someone has to
    assert dict(rates) == {"EUR": 2.0}


class Broken:
    """An object that fails where it is told to."""

    fails = ""

    def __init__(self) -> None:
        if self.fails == "init":
            raise RuntimeError("no")

    def snapshot_state(self) -> int:
        if self.fails == "snapshot":
            raise RuntimeError("no")
        return "text" if self.fails == "type" else 5  # type: ignore[return-value]

    def restore_state(self, state: int) -> None:
        if self.fails == "restore":
            raise RuntimeError("no")


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("init", "'held' of operator 'keep' in shard 0 in epoch 1: Broken.restore_state failed"),
        ("snapshot", "in shard 0 in epoch 1: Broken.snapshot_state failed with RuntimeError: no"),
        ("restore", "in shard 0 in epoch 1: Broken.restore_state failed with RuntimeError: no"),
        ("type", "in shard 0 in epoch 1 cannot hold 'text': its type is int"),
    ],
)
def test_an_object_that_fails_fails_the_epoch_and_says_where(
    monkeypatch: pytest.MonkeyPatch, fails: str, said: str
) -> None:
    @sk.process(key="user")
    def keep(event: Event, held: Broken) -> None: ...

    harness = Harness(keep)
    harness.send(Event("a", 1))
    monkeypatch.setattr(Broken, "fails", fails)
    with pytest.raises(sk.StatekitError, match=said):
        harness.send(Event("a", 1))
    monkeypatch.setattr(Broken, "fails", "")
    assert harness.operator_state("held") == [5]


class Pickled:
    def __init__(self) -> None:
        self.last: complex = 0j

    def snapshot_state(self) -> complex:
        return self.last

    def restore_state(self, state: complex) -> None:
        self.last = state


def test_an_object_may_be_pickled_if_it_is_asked_for() -> None:
    @sk.process(key="user")
    def keep(event: Event, held: Annotated[Pickled, sk.PickleCodec()]) -> None:
        held.last += event.value * 1j

    harness = Harness(keep)
    harness.send(Event("a", 1))
    harness.crash()
    harness.send(Event("a", 2))
    assert harness.operator_state("held") == [3j]


# ----------------------------------------------------------------------------- many operations


@settings(deadline=None, max_examples=40)
@given(
    epochs=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["append", "clear", "update", "value", "unset"]), st.integers(0, 9)
            ),
            max_size=6,
        ),
        max_size=5,
    ),
    backend=st.sampled_from(BACKENDS),
    crashes=st.sets(st.integers(0, 5)),
)
def test_operator_state_behaves_like_plain_python(
    epochs: list[list[tuple[str, int]]], backend: Literal["memory", "rocksdb"], crashes: set[int]
) -> None:
    @sk.process()
    def apply(
        event: Event, held: sk.OperatorListState[int], value: sk.OperatorState[int]
    ) -> Iterator[tuple[list[int], int | None]]:
        match event.user:
            case "append":
                held.append(event.value)
            case "clear":
                held.clear()
            case "update":
                held.update([event.value, *held][:3])
            case "value":
                value.update(event.value)
            case _:
                value.clear()
        yield list(held), value.get()

    harness = Harness(apply, backend=backend)
    listed: list[int] = []
    valued: int | None = None
    for number, operations in enumerate(epochs):
        if number in crashes:
            harness.crash()
        expected = []
        for what, operand in operations:
            match what:
                case "append":
                    listed = [*listed, operand]
                case "clear":
                    listed = []
                case "update":
                    listed = [operand, *listed][:3]
                case "value":
                    valued = operand
                case _:
                    valued = None
            expected.append((listed, valued))
        assert harness.send(*(Event(*operation) for operation in operations)) == expected
    assert harness.operator_state("held") == [listed]
    assert harness.operator_state("value") == [valued]


def test_reports_of_shards_cross_processes_with_their_files() -> None:
    harness = Harness(count)
    harness.send(*EVENTS)
    last = harness._runner.coordinator.last
    assert last is not None
    report = ShardReport(operator="count", shard=last.operators["count"].shards[0])
    assert ShardReport.model_validate_json(report.model_dump_json()) == report
