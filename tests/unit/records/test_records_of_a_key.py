"""Functions that take all records of a key at once, `Iterator[Event]`, and what they see."""

from __future__ import annotations

import datetime as dt
import pickle
import typing
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import cloudpickle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.functions.process import Process
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.task import ShardTask
from statekit.testing import Harness, states

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Event(NamedTuple):
    user: str
    value: int


class Payment(NamedTuple):
    user: str
    cents: int


class Moment(NamedTuple):
    user: str
    at: dt.datetime


class Total(NamedTuple):
    user: str
    total: int


@sk.process(key="user")
def one_by_one(event: Event, held: sk.ValueState[int], seen: sk.ListState[int]) -> Iterator[Total]:
    held.update((held.get() or 0) + event.value)
    seen.append(event.value)
    yield Total(event.user, held.get() or 0)


@sk.process(key="user")
def at_once(
    events: Iterator[Event], held: sk.ValueState[int], seen: sk.ListState[int]
) -> Iterator[Total]:
    total = held.get() or 0
    for event in events:
        total += event.value
        seen.append(event.value)
        yield Total(event.user, total)
    held.update(total)


def minute(at: int) -> dt.datetime:
    return NOON + dt.timedelta(minutes=at)


# ------------------------------------------------------------------------------ what they are given


@FEW
@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(-5, 5)), max_size=40),
    st.lists(st.integers(0, 40), max_size=3),
    st.integers(1, 3),
    st.sampled_from(["memory", "memory", "rocksdb"]),
)
def test_outputs_and_state_are_those_of_a_function_that_takes_one(
    given: list[tuple[str, int]],
    cuts: list[int],
    parallelism: int,
    backend: Literal["memory", "rocksdb"],
) -> None:
    records = [Event(*each) for each in given]
    one, many = (Harness(fn, parallelism, backend=backend) for fn in (one_by_one, at_once))
    for start, end in pairwise([0, *sorted(cuts), len(records)]):
        assert many.send(*records[start:end]) == one.send(*records[start:end])
        many.crash()
    for user in "abcde":
        for state in ("held", "seen"):
            assert many.state(state, user) == one.state(state, user)


def test_it_is_called_once_for_each_key_of_an_epoch_with_the_records_in_their_order() -> None:
    @sk.process(key="user")
    def calls(events: Iterator[Event], ctx: sk.Context[str]) -> Iterator[tuple[str, list[int]]]:
        yield ctx.key, [event.value for event in events]

    harness = Harness(calls)
    sent = [Event("a", 3), Event("b", 1), Event("a", 1), Event("a", 2)]
    assert sorted(harness.send(*sent)) == [("a", [3, 1, 2]), ("b", [1])]
    assert harness.send(Event("a", 9)) == [("a", [9])]
    assert harness.send() == []


def test_a_key_with_more_records_than_a_batch_is_one_call() -> None:
    @sk.process(key="user")
    def counted(events: Iterator[Event], calls: sk.ValueState[int]) -> Iterator[Total]:
        calls.update((calls.get() or 0) + 1)
        yield Total("", sum(1 for _ in events))

    harness = Harness(counted)
    assert harness.send(*[Event("a", n) for n in range(25_000)]) == [Total("", 25_000)]
    assert harness.state("calls", "a") == 1


def test_records_that_it_does_not_ask_for_are_skipped() -> None:
    @sk.process(key="user")
    def firsts(events: Iterator[Event]) -> Iterator[Event]:
        yield next(events)

    sent = [Event(user, n) for n in range(3) for user in "ab"]
    assert sorted(Harness(firsts).send(*sent)) == [Event("a", 0), Event("b", 0)]


def test_a_plain_function_may_return_a_list_or_nothing() -> None:
    @sk.process(key="user")
    def listed(events: Iterator[Event]) -> list[Total]:
        return [Total("sum", sum(event.value for event in events))]

    @sk.process(key="user")
    def kept(events: Iterator[Event], last: sk.ValueState[int]) -> None:
        for event in events:
            last.update(event.value)

    assert Harness(listed).send(Event("a", 1), Event("a", 2)) == [Total("sum", 3)]
    harness = Harness(kept)
    assert harness.send(Event("a", 1), Event("a", 2)) == []
    assert harness.state("last", "a") == 2


def test_records_of_several_streams_arrive_stream_by_stream() -> None:
    @sk.process(key="user")
    def told(events: Iterator[Event | Payment]) -> Iterator[tuple[str, list[str]]]:
        found = list(events)
        yield found[0].user, [type(event).__name__ for event in found]

    job = sk.Job("shop")
    both = job.source("events", Event).union(job.source("payments", Payment))
    both.process(told).sink("out")
    paid = [Payment("a", 1), Payment("b", 2)]
    run = job.run({"payments": paid, "events": [Event("a", 1), Event("a", 2)]})
    assert sorted(run.outputs["out"]) == [("a", ["Event", "Event", "Payment"]), ("b", ["Payment"])]


def test_without_a_key_it_is_called_once_for_each_shard() -> None:
    @sk.process()
    def batches(events: Iterator[Event], sent: sk.OperatorState[int]) -> Iterator[int]:
        batch = list(events)
        sent.update((sent.get() or 0) + 1)
        yield len(batch)

    harness = Harness(batches, parallelism=2)
    assert sorted(harness.send(*[Event("a", n) for n in range(5)])) == [2, 3]
    assert harness.operator_state("sent") == [1, 1]


def test_it_is_tested_by_calling_it() -> None:
    given = states(at_once, "a")
    assert list(at_once(iter([Event("a", 1), Event("a", 2)]), **given)) == [
        Total("a", 1),
        Total("a", 3),
    ]
    assert given["held"].get() == 3


# --------------------------------------------------------------------------------------------- time


def test_each_record_is_processed_at_its_event_time_and_late_records_never() -> None:
    @sk.process(key="user", event_time="at")
    def times(
        events: Iterator[Moment], ctx: sk.Context[str]
    ) -> Iterator[tuple[str, list[dt.datetime]]]:
        begun = ctx.event_time
        yield ctx.key, [begun, *(ctx.event_time for _ in events), ctx.event_time]

    harness = Harness(times)
    given = [("a", 3), ("b", 5), ("a", 1), ("a", 2)]
    assert sorted(harness.send(*[Moment(user, minute(at)) for user, at in given])) == [
        ("a", [minute(3), minute(3), minute(1), minute(2), minute(3)]),
        ("b", [minute(5), minute(5), minute(5)]),
    ]
    late = Moment("a", minute(4))
    assert harness.send(late, Moment("a", minute(6))) == [("a", [minute(6)] * 3)]
    assert harness.late == [late]


def test_event_time_continues_over_several_batches() -> None:
    @sk.process(key="user", event_time="at")
    def latest(events: Iterator[Moment], ctx: sk.Context) -> Iterator[dt.datetime]:
        for _ in events:
            last = ctx.event_time
        yield last
        yield ctx.event_time

    moments = [Moment("a", minute(20_000 - n)) for n in range(20_000)]
    assert Harness(latest).send(*moments) == [minute(1), minute(20_000)]


def one_moment(
    event: Moment,
    last: Annotated[sk.ValueState[int], sk.TTL("10 minutes", "event")],
    all: Annotated[sk.ListState[int], sk.TTL("10 minutes", "event")],
) -> None:
    last.update(event.at.minute)
    all.append(event.at.minute)


def moments_at_once(
    events: Iterator[Moment],
    last: Annotated[sk.ValueState[int], sk.TTL("10 minutes", "event")],
    all: Annotated[sk.ListState[int], sk.TTL("10 minutes", "event")],
) -> None:
    for event in events:
        all.append(event.at.minute)
    last.update(event.at.minute)


@FEW
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), min_size=1, max_size=8))
def test_values_expire_as_with_a_function_that_takes_one_record(
    given: list[tuple[str, int]],
) -> None:
    harnesses: list[Harness[Any]] = [
        Harness(sk.process(key="user", event_time="at", lateness="1 hour")(fn))
        for fn in (one_moment, moments_at_once)
    ]
    for harness in harnesses:
        harness.send(*[Moment(user, minute(at)) for user, at in given])
    for now in (5, 11, 17, 25, 38, 45):
        for harness in harnesses:
            harness.advance_watermark(minute(now))
        one, many = (
            [h.state(state, user) for state in ("last", "all") for user in "abc"] for h in harnesses
        )
        assert many == one
    assert many == [None] * 3 + [[]] * 3


def test_timers_fire_as_for_any_other_function() -> None:
    @sk.process(key="user", event_time="at")
    def sessions(
        events: Iterator[Moment], ctx: sk.Context, count: sk.ValueState[int]
    ) -> Iterator[Total]:
        found = sorted(event.at for event in events)
        count.update((count.get() or 0) + len(found))
        ctx.timers.replace(found[-1] + dt.timedelta(minutes=30))
        yield from ()

    @sessions.on_timer
    def ended(timer: sk.Timer, ctx: sk.Context[str], count: sk.ValueState[int]) -> Iterator[Total]:
        yield Total(ctx.key, count.get() or 0)
        count.clear()

    harness = Harness(sessions, parallelism=2)
    assert (
        harness.send(Moment("a", minute(0)), Moment("b", minute(1)), Moment("a", minute(2))) == []
    )
    assert sorted(harness.advance_watermark(minute(60))) == [Total("a", 2), Total("b", 1)]


# ------------------------------------------------------------------------------------------- errors


def test_an_error_shows_the_record_that_was_taken_last() -> None:
    @sk.process(key="user")
    def picky(events: Iterator[Event], held: sk.ValueState[int]) -> Iterator[int]:
        for event in events:
            if event.value == 3:
                raise ValueError("three")
            yield event.value

    harness = Harness(picky)
    with pytest.raises(
        sk.ProcessError, match=r"three; the record taken last was Event\(user='a', value=3\)"
    ):
        harness.send(*[Event("a", value) for value in range(6)])
    assert harness.epoch is None


def test_an_error_before_any_record_is_taken_shows_the_first() -> None:
    @sk.process(key="user")
    def never(events: Iterator[Event]) -> list[int]:
        raise ValueError("never")

    with pytest.raises(sk.ProcessError, match=r"never; the first record was Event\(user='a'"):
        Harness(never).send(Event("a", 1))


def test_a_state_error_names_the_record_that_was_taken() -> None:
    @sk.process(key="user")
    def wrong(events: Iterator[Event], held: sk.ValueState[int]) -> None:
        for _ in events:
            held.update("text")  # type: ignore[arg-type]

    with pytest.raises(sk.StateTypeError) as caught:
        Harness(wrong).send(Event("a", 7), Event("a", 8))
    assert caught.value.__notes__ == [
        "while operator 'wrong' handled a key, and the record taken last was "
        "Event(user='a', value=7)"
    ]


class Unreadable(OSError):
    """What a worker may find where more records should be."""


def broken_off(keys: str) -> Iterator[KeyedBatch]:
    """A chunk, and an error where the next one should be."""
    yield KeyedBatch(keys, [7] * len(keys), keys, [Event(key, n) for n, key in enumerate(keys)])
    raise Unreadable("the pipe broke")


def swallow(events: Iterator[Event]) -> Iterator[int]:
    try:
        yield from (event.value for event in events)
    except OSError:
        yield -1


def turn_into_another(events: Iterator[Event]) -> Iterator[int]:
    try:
        yield from (event.value for event in events)
    except OSError as error:
        raise ValueError("of the user's") from error


def leave_off(events: Iterator[Event]) -> Iterator[int]:
    yield next(events).value


@pytest.mark.parametrize("fn", [swallow, turn_into_another, leave_off])
@pytest.mark.parametrize("keys", ["aaa", "aab"])
def test_unreadable_records_fail_the_epoch_even_if_the_function_catches_the_error(
    fn: Any, keys: str
) -> None:
    declared = sk.process(key="user")(fn)
    groups = ShardState(first_group=0, last_group=127)
    plan = ShardPlan("checkpoint", fn.__name__, 0, 0, groups, None)
    task = ShardTask(declared, plan, MemoryBackend(declared.families), lambda batch: None)
    with pytest.raises(Unreadable, match="the pipe broke"):
        list(task.run_all(broken_off(keys)))


def test_an_iterator_that_is_kept_has_nothing_for_another_key() -> None:
    kept: list[Iterator[Event]] = []

    @sk.process(key="user", event_time="at")
    def keeping(events: Iterator[Moment], ctx: sk.Context[str]) -> Iterator[tuple[str, int]]:
        yield ctx.key, sum(len(list(each)) for each in kept)
        kept.append(events)  # type: ignore[arg-type]

    assert sorted(Harness(keeping).send(*[Moment(u, minute(1)) for u in "aabbcc"])) == [
        ("a", 0),
        ("b", 0),
        ("c", 0),
    ]


def test_a_function_in_order_of_time_takes_one_record_at_a_time() -> None:
    with pytest.raises(sk.StateTypeError, match=r"with ordered=True a key's records come one by"):

        @sk.process(key="user", event_time="at", ordered=True)
        def never(moments: Iterator[Moment]) -> None: ...


@pytest.mark.parametrize(
    "annotation", [list[Event], Iterable[Event], Sequence[Event], tuple[Event, ...]]
)
def test_other_collections_of_records_are_refused_with_advice(annotation: Any) -> None:
    def function(events, held): ...  # type: ignore[no-untyped-def]

    function.__annotations__ = {"events": annotation, "held": sk.ValueState[int], "return": None}
    with pytest.raises(sk.StateTypeError, match=r"parameter 'events': .*annotate it with Iterator"):
        sk.process(key="user")(function)


@pytest.mark.parametrize(
    "annotation",
    [
        Iterator,
        typing.Iterator,
        list,
        Iterator[Event] | None,
        Iterator[Event] | Iterator[Payment],
        list[Iterator[Event]],
    ],
)
def test_an_iterator_of_nothing_and_several_iterators_are_refused(annotation: Any) -> None:
    def function(events): ...  # type: ignore[no-untyped-def]

    function.__annotations__ = {"events": annotation, "return": None}
    with pytest.raises(sk.StateTypeError, match=r"annotate it with Iterator\[Event\], where"):
        sk.process(key="user")(function)


@pytest.mark.parametrize("annotation", [Iterator[int], Iterator[Iterator[Event]]])
def test_an_iterator_over_a_type_that_is_not_a_record_is_refused(annotation: Any) -> None:
    def function(events): ...  # type: ignore[no-untyped-def]

    function.__annotations__ = {"events": annotation, "return": None}
    with pytest.raises(sk.StateTypeError, match="is not a record type"):
        sk.process(key="user")(function)


def test_timers_and_broadcast_records_are_handled_one_at_a_time() -> None:
    @sk.process(key="user")
    def fn(events: Iterator[Event], rules: sk.BroadcastState[str, int]) -> None: ...

    with pytest.raises(sk.StateTypeError, match="the first parameter takes the timer"):

        @fn.on_timer  # type: ignore[arg-type]
        def ring(timers: Iterator[sk.Timer]) -> None: ...

    with pytest.raises(sk.StateTypeError, match="is not a record type"):

        @fn.on_broadcast
        def learn(payments: Iterator[Payment], rules: sk.BroadcastState[str, int]) -> None: ...


# ------------------------------------------------------------------------------- what is made of it


def test_it_is_sent_to_workers_as_it_is() -> None:
    sent: Process[Any, Any, Any] = pickle.loads(cloudpickle.dumps(at_once))
    assert sent.takes_runs
    assert sent.record_type.cls is Event
    assert Harness(sent).send(Event("a", 1), Event("a", 2)) == [Total("a", 1), Total("a", 3)]


def test_a_job_may_change_to_a_function_of_many_records_and_back(tmp_path: Path) -> None:
    sent: list[Event] = []
    for fn, total in ((one_by_one, 1), (at_once, 2), (one_by_one, 3)):
        job = sk.Job("totals")
        job.source("events", Event).process(fn, name="total").sink("out")
        sent.append(Event("a", 1))  # a run goes on behind what was read
        run = job.run({"events": sent}, checkpoint=tmp_path)
        assert run.outputs["out"] == [Total("a", total)]


def test_explain_says_how_often_it_is_called() -> None:
    @sk.process()
    def batches(events: Iterator[Event]) -> None: ...

    job = sk.Job("shop")
    events = job.source("events", Event)
    events.process(at_once).sink("out")
    events.process(batches)
    told = str(job.explain())
    assert "at_once: called once per key and epoch, with all records of the key" in told
    assert "batches: called once per shard and epoch, with all records of the shard" in told
    assert "reads user, value of events, and nothing else" in told
