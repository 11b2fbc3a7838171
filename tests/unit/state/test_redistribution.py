"""What becomes of state of shards when there are more or fewer of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.job_file import StateRecord
from statekit.checkpoint.repository import LocalRows as Rows
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import local_rows
from statekit.codec.value_codec import value_codec
from statekit.functions.state_parameters import state_spec
from statekit.keygroup import key_group
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.sizes import counted_sizes
from statekit.query.rows.reader import CheckpointReader
from statekit.state.redistribution import moved_rows
from statekit.testing import Harness, check_redistribution

INTS = value_codec(int)


def moved(annotation: Any, held: list[Any], shards: int) -> list[Any]:
    """Plain states of old shards to plain states of new ones: lists, or values and None."""
    spec = state_spec("op", "held", annotation)
    is_list = spec.state_class is sk.OperatorListState
    record = StateRecord(
        name="held",
        kind=spec.kind.name,
        codec="msgpack",
        types={"value": spec.codec.schema.to_json()},
        fingerprint="",
        redistribute=spec.redistribute.known if spec.redistribute else None,
    )
    rows = [_rows(state if is_list else [] if state is None else [state]) for state in held]
    after = [
        [INTS.decode(row) for _, row in sorted(shard)]
        for shard in moved_rows("op", record, spec, rows, shards, 7)
    ]
    return after if is_list else [state[0] if state else None for state in after]


def _rows(values: list[int]) -> Rows:
    return [(n.to_bytes(12), INTS.encode(value)) for n, value in enumerate(values)]


EVEN = Annotated[sk.OperatorListState[int], sk.Redistribute("even")]
UNION = Annotated[sk.OperatorListState[int], sk.Redistribute("union")]
COPIES = Annotated[sk.OperatorListState[int], sk.Redistribute("broadcast")]
COPY = Annotated[sk.OperatorState[int], sk.Redistribute("broadcast")]


def test_even_cuts_the_concatenation_into_equal_pieces() -> None:
    assert moved(EVEN, [[1, 2, 3], [4, 5]], 3) == [[1, 2], [3, 4], [5]]
    assert moved(EVEN, [[1], [], [2, 3], [4, 5]], 2) == [[1, 2, 3], [4, 5]]
    assert moved(EVEN, [[1], [2]], 4) == [[1], [2], [], []]


def test_union_gives_everyone_everything() -> None:
    assert moved(UNION, [[1, 2], [], [3]], 2) == [[1, 2, 3], [1, 2, 3]]


def test_broadcast_copies_the_old_shards_in_turn() -> None:
    assert moved(COPY, [10, 20], 5) == [10, 20, 10, 20, 10]
    assert moved(COPY, [10, None, 30], 2) == [10, None]
    assert moved(COPIES, [[1], [2, 3]], 3) == [[1], [2, 3], [1]]


@given(
    held=st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=6),
    shards=st.integers(1, 9),
)
def test_even_and_union_lose_nothing_and_make_up_nothing(
    held: list[list[int]], shards: int
) -> None:
    everything = [element for state in held for element in state]
    even = moved(EVEN, held, shards)
    assert [element for state in even for element in state] == everything
    if len(held) != shards:
        assert max(map(len, even)) - min(map(len, even)) <= 1
        assert moved(UNION, held, shards) == [everything] * shards


def share(total: int, n: int) -> list[int]:
    return [total // n + (part < total % n) for part in range(n)]


SHARED = Annotated[sk.OperatorState[int], sk.Redistribute(split=share, merge=sum)]


def test_hooks_split_each_shard_for_those_that_follow_it() -> None:
    assert moved(SHARED, [10, 7], 4) == [5, 5, 4, 3]
    assert moved(SHARED, [10, 7], 3) == [5, 5, 7]
    assert moved(SHARED, [10, None, 1], 5) == [5, 5, None, None, 1]


def test_hooks_merge_neighbours() -> None:
    assert moved(SHARED, [1, 2, 3, 4], 2) == [3, 7]
    assert moved(SHARED, [1, 2, 3, 4], 3) == [3, 3, 4]
    assert moved(SHARED, [None, None, 5, None], 2) == [None, 5]


@given(
    held=st.lists(st.none() | st.integers(0, 99), min_size=1, max_size=7), shards=st.integers(1, 9)
)
def test_hooks_are_given_each_contribution_exactly_once(
    held: list[int | None], shards: int
) -> None:
    given: list[int] = []

    def split(total: int, n: int) -> list[int]:
        given.append(total)
        return share(total, n)

    def merge(totals: list[int]) -> int:
        given.extend(totals)
        return sum(totals)

    rule = Annotated[sk.OperatorState[int], sk.Redistribute(split=split, merge=merge)]
    after = moved(rule, held, shards)
    assert len(after) == shards
    assert sum(total or 0 for total in after) == sum(total or 0 for total in held)
    remaining = [total for total in held if total is not None]
    for total in given:
        remaining.remove(total)


def test_lists_are_split_and_merged_as_lists() -> None:
    def deal(elements: list[int], n: int) -> list[list[int]]:
        return [elements[part::n] for part in range(n)]

    def join(lists: list[list[int]]) -> list[int]:
        return sorted(element for elements in lists for element in elements)

    rule = Annotated[sk.OperatorListState[int], sk.Redistribute(split=deal, merge=join)]
    assert moved(rule, [[1, 2, 3], [4]], 4) == [[1, 3], [2], [4], []]
    assert moved(rule, [[3, 4], [1], [2]], 1) == [[1, 2, 3, 4]]


def test_the_same_parallelism_touches_nothing() -> None:
    def never(*given: Any) -> Any:
        raise AssertionError(given)

    rule = Annotated[sk.OperatorState[int], sk.Redistribute(split=never, merge=never)]
    assert moved(rule, [1, None, 3], 3) == [1, None, 3]
    assert moved(sk.OperatorState[int], [1, 2], 2) == [1, 2]


def test_operator_state_without_a_rule_cannot_be_rescaled_unless_it_is_empty() -> None:
    assert moved(sk.OperatorState[int], [None, None], 3) == [None, None, None]
    with pytest.raises(
        sk.RescaleError,
        match=r"operator state 'held' of operator 'op' has values in 1 of 2 shards.*"
        r"Redistribute\(split=\.\.\., merge=\.\.\.\).*parallelism=2",
    ):
        moved(sk.OperatorState[int], [None, 1], 3)
    with pytest.raises(sk.RescaleError, match=r'Redistribute\("even"\)'):
        moved(sk.OperatorListState[int], [[1], []], 3)


def fails(*given: Any) -> Any:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (lambda state, n: [state] * (n + 1), "split of shard 0 for 2 shards returned 3, and not a"),
        (lambda state, n: [state], "split of shard 0 for 2 shards returned 1, and not a list of 2"),
        (lambda state, n: state, "returned 10, and not a list of 2 states"),
        (lambda state, n: ["text"] * n, "returned 'text', which int cannot hold"),
        (fails, "split of shard 0 for 2 shards failed with RuntimeError: no. Nothing was changed"),
    ],
)
def test_a_split_that_does_not_fit_is_an_error(split: Any, said: str) -> None:
    rule = Annotated[sk.OperatorState[int], sk.Redistribute(split=split, merge=sum)]
    with pytest.raises(sk.RescaleError, match=said):
        moved(rule, [10, 7], 4)


@pytest.mark.parametrize(
    ("merge", "said"),
    [
        (lambda states: "text", "merge of 2 shards for shard 0 returned 'text', which int cannot"),
        (fails, "merge of 2 shards for shard 0 failed with RuntimeError: no"),
    ],
)
def test_a_merge_that_does_not_fit_is_an_error(merge: Any, said: str) -> None:
    rule = Annotated[sk.OperatorState[int], sk.Redistribute(split=share, merge=merge)]
    with pytest.raises(sk.RescaleError, match=said):
        moved(rule, [10, 7], 1)


def test_hooks_that_are_not_at_hand_are_asked_for() -> None:
    record = StateRecord(
        name="held",
        kind="operator_value",
        codec="msgpack",
        types={"value": "int"},
        fingerprint="",
        redistribute="hooks",
    )
    with pytest.raises(sk.RescaleError, match="--app module:job"):
        moved_rows("op", record, None, [_rows([1]), _rows([2])], 1, 7)


# ------------------------------------------------------------------------- a helper for users


class Words:
    """A set of words that is split by first letter."""

    def snapshot_state(self) -> frozenset[str]:
        return frozenset()

    def restore_state(self, state: frozenset[str]) -> None: ...

    @staticmethod
    def split_state(state: frozenset[str], n: int) -> list[frozenset[str]]:
        return [frozenset(w for w in state if ord(w[0]) % n == part) for part in range(n)]

    @staticmethod
    def merge_states(states: list[frozenset[str]]) -> frozenset[str]:
        return frozenset().union(*states)


def test_functions_that_lose_nothing_pass() -> None:
    check_redistribution(sk.Redistribute(split=share, merge=sum), range(20))
    check_redistribution(Words, [frozenset({"a", "b", "c"}), frozenset()], shards=[1, 2, 16])


def forgets(elements: list[int], n: int) -> list[list[int]]:
    return [elements[part::n][:2] for part in range(n)]


def empties(elements: list[int], n: int) -> list[list[int]]:
    return [[elements.pop() for _ in elements[part::n]] for part in range(n)]


def join(lists: list[list[int]]) -> list[int]:
    return sorted(element for elements in lists for element in elements)


def drains(lists: list[list[int]]) -> list[int]:
    return sorted(elements.pop() for elements in lists for _ in list(elements))


@pytest.mark.parametrize(
    ("split", "merge", "said"),
    [
        (forgets, join, r"merge\(split\(\[1, 2, 3, 4, 5\], 2\)\) is \[1, 2, 3, 4\]"),
        (lambda s, n: [s], join, r"split\(\[1, 2, 3, 4, 5\], 2\) returned \[\[1, 2, 3, 4, 5\]\]"),
        (empties, join, r"changed what it was given to \[1\]"),
        (lambda s, n: [s[part::n] for part in range(n)], drains, "merge changed what it was given"),
    ],
)
def test_functions_that_lose_state_are_reported_with_the_place(
    split: Any, merge: Any, said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        check_redistribution(sk.Redistribute(split=split, merge=merge), [[1, 2, 3, 4, 5]])


def test_functions_that_raise_and_lists_without_elements_are_reported() -> None:
    hooks = sk.Redistribute(split=lambda count, shards: [count // 0], merge=sum)
    with pytest.raises(AssertionError, match=r"split\(1, 2\) raises ZeroDivisionError"):
        check_redistribution(hooks, [1])
    wrong: list[dict[str, Any]] = [{"states": []}, {"states": [1], "shards": 3}]
    for arguments in wrong:
        with pytest.raises(sk.StateTypeError, match="give a list with at least one"):
            check_redistribution(hooks, **arguments)


def test_where_there_is_no_function_there_is_nothing_to_check() -> None:
    with pytest.raises(sk.StateTypeError, match="no functions to check"):
        check_redistribution(sk.Redistribute("even"), [[1]])


# ------------------------------------------------------------------- through a change of shards


class Event(NamedTuple):
    user: str
    value: int


@sk.process(key="user")
def gather(
    event: Event,
    total: sk.ValueState[int],
    seen: Annotated[sk.OperatorListState[int], sk.Redistribute("even")],
    all_seen: Annotated[sk.OperatorListState[int], sk.Redistribute("union")],
    count: Annotated[sk.OperatorState[int], sk.Redistribute(split=share, merge=sum), sk.Default(0)],
    unused: sk.OperatorState[int],
) -> Iterator[int]:
    total.update((total.get() or 0) + event.value)
    seen.append(event.value)
    all_seen.append(event.value)
    count.update((count.get() or 0) + 1)
    yield total.get() or 0


EVENTS = [Event(f"u{n % 12}", n) for n in range(40)]


def job_of(declared: sk.Process[Event, ..., Any]) -> sk.Job:
    """The job of a harness, for work on its checkpoint while none runs."""
    made = sk.Job(declared.name)
    made.source("records", Event).process(declared).sink("outputs")
    return made


BACKENDS: tuple[Literal["memory", "rocksdb"], ...] = ("memory", "rocksdb")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("steps", [[2, 4, 3], [4, 1, 5], [3, 2, 2, 8]])
def test_operator_state_goes_through_changes_of_parallelism(
    tmp_path: Path, steps: list[int], backend: Literal["memory", "rocksdb"]
) -> None:
    first, *others = steps
    harness = Harness(gather, parallelism=first, key_groups=16, backend=backend)
    harness.send(*EVENTS)
    for number, parallelism in enumerate(others):
        seen, counts = harness.operator_state("seen"), harness.operator_state("count")
        union = harness.operator_state("all_seen")
        harness.checkpoint(tmp_path / str(number))
        harness = Harness.restore(
            gather, tmp_path / str(number), parallelism=parallelism, backend=backend
        )
        everything = [value for values in seen for value in values]
        if parallelism != len(seen):
            assert harness.operator_state("seen") == moved(EVEN, seen, parallelism)
            assert harness.operator_state("all_seen") == moved(UNION, union, parallelism)
            assert harness.operator_state("count") == [
                held or 0 for held in moved(SHARED, counts, parallelism)
            ]
        harness.crash()  # nothing was committed yet, and everything is as it was before
        held = harness.operator_state("seen")
        assert [value for values in held for value in values] == everything
        harness.send(*EVENTS[:3])
        after = harness.operator_state("seen")
        assert [len(a) - len(b) for a, b in zip(after, held, strict=True)] == [
            sum(harness.shard_of(event.user) == shard for event in EVENTS[:3])
            for shard in range(parallelism)
        ]
        assert sum(harness.operator_state("count")) == sum(counts) + 3
        harness.crash()
        assert harness.operator_state("seen") == after
    assert harness.state("total", "u5") == sum(e.value for e in EVENTS if e.user == "u5")


def test_a_shard_that_gets_state_and_no_records_has_it_all_the_same(tmp_path: Path) -> None:
    harness = Harness(gather, parallelism=1, key_groups=16, checkpoint=tmp_path)
    harness.send(*EVENTS)
    harness = Harness(gather, parallelism=16, checkpoint=tmp_path)
    harness.send(EVENTS[0])
    harness.send(EVENTS[0])
    reader = CheckpointReader(tmp_path)
    assert sum(reader.operator_state("gather", "count")) == len(EVENTS) + 2
    union = reader.operator_state("gather", "all_seen")
    assert sorted(len(held) for held in union) == [40] * 15 + [42]
    assert Harness(gather, checkpoint=tmp_path).operator_state("all_seen") == union


@sk.process(key="user")
def undeclared(event: Event, count: Annotated[sk.OperatorState[int], sk.Default(0)]) -> None:
    count.update((count.get() or 0) + event.value)


def test_a_start_with_another_parallelism_is_refused_if_operator_state_has_no_rule(
    tmp_path: Path,
) -> None:
    harness = Harness(undeclared, parallelism=2, checkpoint=tmp_path)
    harness.send(*EVENTS)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(sk.RescaleError, match="'count' of operator 'undeclared' has values"):
        Harness(undeclared, parallelism=3, checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    again = Harness(undeclared, parallelism=2, checkpoint=tmp_path)
    assert again.operator_state("count") == harness.operator_state("count")


def test_a_hook_that_fails_changes_nothing(tmp_path: Path) -> None:
    @sk.process(key="user")
    def counted(
        event: Event,
        count: Annotated[sk.OperatorState[int], sk.Redistribute(split=fails, merge=fails)],
    ) -> None:
        count.update(event.value)

    Harness(counted, parallelism=2, checkpoint=tmp_path).send(*EVENTS)
    for parallelism in (1, 3):
        with pytest.raises(sk.RescaleError, match="failed with RuntimeError: no"):
            Harness(counted, parallelism=parallelism, checkpoint=tmp_path)
    assert Harness(counted, checkpoint=tmp_path).parallelism == 2


def test_a_hook_that_fails_after_a_rollback_rolls_nothing_back(tmp_path: Path) -> None:
    @sk.process(key="user")
    def counted(
        event: Event,
        count: Annotated[sk.OperatorState[int], sk.Redistribute(split=fails, merge=fails)],
    ) -> None:
        count.update(event.value)

    @sk.process(key="user")
    def mended(event: Event, count: SHARED) -> None: ...

    for end in (20, 40):
        job_of(counted).run(
            {"records": EVENTS[:end]}, checkpoint=tmp_path, parallelism=2, drain=False
        )
    options: dict[str, Any] = {"checkpoint": tmp_path, "parallelism": 3, "from_epoch": 0}
    with pytest.raises(sk.RescaleError, match="failed with RuntimeError: no"):
        job_of(counted).run({"records": EVENTS}, **options)
    repository = Repository(tmp_path)
    assert repository.epochs() == [0, 1]
    before = local_rows(
        repository, job_of(counted).plan.operators[0].record(), repository.manifest(0)
    )
    mended.name = "counted"
    run = sk.Job("counted")
    run.source("records", Event).process(mended, name="counted")
    run.run({"records": EVENTS}, drain=False, **options)
    held = CheckpointReader(tmp_path).operator_state("counted", "count")
    assert sum(n or 0 for n in held) == sum(
        INTS.decode(row) for s in before["count"] for _, row in s
    )


def test_a_rule_may_be_declared_when_it_is_needed(tmp_path: Path) -> None:
    Harness(undeclared, parallelism=2, checkpoint=tmp_path).send(*EVENTS)

    @sk.process(key="user")
    def undeclared_no_more(
        event: Event,
        count: Annotated[sk.OperatorState[int], sk.Redistribute(split=share, merge=sum)],
    ) -> None:
        count.update((count.get() or 0) + event.value)

    undeclared_no_more.name = "undeclared"
    held = Harness(undeclared_no_more, parallelism=5, checkpoint=tmp_path).operator_state("count")
    assert sum(total or 0 for total in held) == sum(event.value for event in EVENTS)


def test_pending_redistributed_state_is_moved_without_touching_other_shards(tmp_path: Path) -> None:
    harness = Harness(gather, parallelism=4, key_groups=4, checkpoint=tmp_path)
    by_shard = {harness.shard_of(event.user): event for event in EVENTS}
    harness.send(*by_shard.values())
    for parallelism in (2, 4):  # no shard runs in between
        rescale_offline(Repository(tmp_path), parallelism, job=job_of(gather))
    for shard in (1, 0, 3, 2):  # each in an epoch of its own
        Harness(gather, checkpoint=tmp_path).send(by_shard[shard])
    reader = CheckpointReader(tmp_path)
    assert reader.operator_state("gather", "count") == [2, 2, 2, 2]
    counted = counted_sizes(reader, "gather").states
    rows = reader.manifest.operators["gather"].rows
    assert {name: size.rows for name, size in counted.items()} == rows


def test_shards_with_only_pending_state_are_rescaled_offline(tmp_path: Path) -> None:
    Harness(gather, parallelism=1, key_groups=5, checkpoint=tmp_path).send(EVENTS[0])
    for parallelism in (5, 2, 4, 3):
        rescale_offline(Repository(tmp_path), parallelism, job=job_of(gather))
    harness = Harness(gather, parallelism=5, checkpoint=tmp_path)
    assert sum(harness.operator_state("count")) == 1
    assert [held for held in harness.operator_state("seen") if held] == [[EVENTS[0].value]]


@settings(deadline=None, max_examples=10)
@given(
    steps=st.lists(
        st.one_of(
            st.lists(st.sampled_from(EVENTS), max_size=4),
            st.integers(1, 8),
            st.tuples(st.just("at rest"), st.integers(1, 8)),
            st.just("crash"),
        ),
        max_size=10,
    ),
    backend=st.sampled_from(BACKENDS),
)
def test_operator_state_is_that_of_a_model_after_any_sequence_of_starts(
    steps: list[list[Event] | int | tuple[str, int] | str], backend: Literal["memory", "rocksdb"]
) -> None:
    with tempfile.TemporaryDirectory() as home:
        harness = Harness(gather, parallelism=2, key_groups=8, backend=backend, checkpoint=home)
        seen: list[list[int]] = [[], []]
        union: list[list[int]] = [[], []]
        counts: list[int | None] = [None, None]
        committed: Any = None
        for step in steps:
            match step:
                case "crash":
                    harness.crash()
                case int(parallelism) | (_, int(parallelism)):
                    at_rest = isinstance(step, tuple)
                    if at_rest and committed is None:
                        continue
                    if at_rest:
                        rescale_offline(Repository(home), parallelism, job=job_of(gather))
                    harness = Harness(
                        gather, parallelism=parallelism, backend=backend, checkpoint=home
                    )
                    # What was moved and never committed is moved again, from where it was.
                    nothing: Any = ([[], []], [[], []], [None, None])
                    before = committed or nothing
                    if parallelism == len(before[0]):
                        seen, union, counts = (list(held) for held in before)
                    else:
                        seen = moved(EVEN, before[0], parallelism)
                        union = moved(UNION, before[1], parallelism)
                        counts = moved(SHARED, before[2], parallelism)
                    if at_rest:
                        committed = seen[:], union[:], counts[:]
                case list(events):
                    by_key = sorted(events, key=lambda event: _place(harness, event))
                    for event in by_key:
                        shard = harness.shard_of(event.user)
                        seen[shard] = [*seen[shard], event.value]
                        union[shard] = [*union[shard], event.value]
                        counts[shard] = (counts[shard] or 0) + 1
                    harness.send(*events)
                    committed = seen[:], union[:], counts[:]
            assert harness.operator_state("seen") == seen
            assert harness.operator_state("all_seen") == union
            assert harness.operator_state("count") == [count or 0 for count in counts]
        if committed is not None:
            held_by_manifest = Repository(home).manifest(harness.epoch or 0).operators["gather"]
            counted = counted_sizes(CheckpointReader(home), "gather").states
            assert {
                name: (held_by_manifest.rows.get(name, 0), held_by_manifest.bytes.get(name, 0))
                for name in counted
            } == counted
        if committed is not None and isinstance(steps[-1], list):
            manifest = Repository(home).manifest(harness.epoch or 0)
            for name, held in (("seen", seen), ("all_seen", union)):
                assert manifest.operators["gather"].rows.get(name, 0) == sum(map(len, held))
                assert [s.rows.get(name, 0) for s in manifest.operators["gather"].shards] == [
                    len(values) for values in held
                ]


def _place(harness: Harness, event: Event) -> tuple[int, bytes]:
    return key_group(event.user, harness.key_groups), event.user.encode()
