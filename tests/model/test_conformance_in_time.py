"""What people who come from other stream processors expect of state and timers together.

The ids are those of the case collection: `B` Beam, `W` bytewax, `Q` quix. Windows are in
`test_windows`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest

import statekit as sk
from statekit.testing import Harness
from tests.support.instants import at

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]


class Number(NamedTuple):
    key: str
    at: dt.datetime
    value: int


class Text(NamedTuple):
    key: str
    at: dt.datetime
    value: str


def numbers(seconds: float, *values: int) -> list[Number]:
    return [Number("k", at(seconds), value) for value in values]


def test_a_value_that_was_cleared_reads_as_nothing_in_the_same_call() -> None:
    """B5: put out what there was, clear, and write what is read then: always None."""

    @sk.process(key="key")
    def rewrite(record: Number, value: sk.ValueState[str]) -> Iterator[str]:
        if value.exists():
            yield value.get() or ""
        value.clear()
        value.update(f"{value.get()}:{record.value}")

    for epochs in ([[1, 3, 5]], [[1], [3], [5]]):
        harness = Harness(rewrite)
        found: list[str] = []
        for values in epochs:
            found += harness.send(*numbers(0, *values))
        assert found == ["None:1", "None:3"]
        assert harness.state("value", "k") == "None:5"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_set_that_is_cleared_and_filled_again_has_the_later_elements(
    backend: Backend, size: int
) -> None:
    """B9: at the fifth element the set is cleared and gets 100; the timer then sees only that."""

    @sk.process(key="key", event_time="at")
    def held(
        record: Number, ctx: sk.Context, values: sk.MapState[int, None], count: sk.ValueState[int]
    ) -> Iterator[list[int]]:
        values[record.value] = None
        count.update((count.get() or 0) + 1)
        if count.get() == 5:
            values.clear()
            values[100] = None
            ctx.timers.set(record.at)
        yield from ()

    @held.on_timer
    def emit(timer: sk.Timer, values: sk.MapState[int, None]) -> Iterator[list[int]]:
        yield sorted(values)

    harness = Harness(held, backend=backend)
    given = numbers(10, 1, 2, 3, 4, 5)
    found: list[list[int]] = []
    for start in range(0, 5, size):
        found += harness.send(*(r._replace(at=at(10 + start)) for r in given[start : start + size]))
    assert found + harness.advance_watermark(at(20)) == [[100]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_combining_state_is_read_by_timers_whenever_they_fire(backend: Backend) -> None:
    """B11: texts are put together; at 25 there are three, and each later record fires at once."""

    def together(one: str, other: str) -> str:
        return one + other

    @sk.process(key="key", event_time="at")
    def joined(
        record: Text, ctx: sk.Context, text: Annotated[sk.ReducingState[str], sk.Reduce(together)]
    ) -> Iterator[str]:
        text.add(record.value)
        ctx.timers.set(at(20))
        yield from ()

    @joined.on_timer
    def emit(
        timer: sk.Timer, text: Annotated[sk.ReducingState[str], sk.Reduce(together)]
    ) -> Iterator[str]:
        yield text.get() or ""

    harness = Harness(joined, backend=backend)
    harness.advance_watermark(at(10))
    harness.send(Text("k", at(11), "1"), Text("k", at(11), "2"))
    harness.send(Text("k", at(12), "3"))
    assert harness.advance_watermark(at(25)) == ["123"]
    assert harness.send(Text("k", at(26), "4")) == ["1234"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_join_keeps_records_until_the_other_side_arrives(
    backend: Backend, parallelism: int
) -> None:
    """B19: two sides of a key are joined in twos and threes; what finds nobody leaves by timer."""
    sides = {"a": "left", "aa": "right", "aaa": "left", "b": "left", "bb": "right"}
    sides |= {"c": "left", "cc": "left", "d": "left", "dd": "right", "ddd": "left", "dddd": "right"}

    @sk.process(key="key", event_time="at")
    def join(
        record: Text, ctx: sk.Context[str], buffer: sk.ListState[str]
    ) -> Iterator[tuple[str, ...]]:
        waiting = list(buffer)
        if waiting and sides[waiting[0]] != sides[record.value]:
            buffer.update(waiting[1:])
            yield ctx.key, waiting[0], record.value
        else:
            buffer.append(record.value)
            ctx.timers.set(at(100))

    @join.on_timer
    def unmatched(
        timer: sk.Timer, ctx: sk.Context[str], buffer: sk.ListState[str]
    ) -> Iterator[tuple[str, ...]]:
        yield from ((ctx.key, value) for value in buffer)
        buffer.clear()

    def texts(seconds: float, *values: str) -> list[Text]:
        return [Text(value[0].upper(), at(seconds), value) for value in values]

    harness = Harness(join, parallelism=parallelism, backend=backend)
    harness.advance_watermark(at(10))
    found = harness.send(*texts(11, "a", "b"))
    found += harness.send(*texts(12, "aa", "c"))
    harness.advance_watermark(at(25))
    found += harness.send(*texts(26, "aaa", "bb"))
    found += harness.send(*texts(27, "d", "dd", "ddd", "dddd"))
    found += harness.advance_watermark(at(125))
    found += harness.send(*texts(126, "cc"))
    assert sorted(found) == [
        ("A", "a", "aa"),
        ("A", "aaa"),
        ("B", "b", "bb"),
        ("C", "c"),
        ("C", "cc"),
        ("D", "d", "dd"),
        ("D", "ddd", "dddd"),
    ]


def stateful(*, retains: bool, when: Literal["item", "timer"]) -> sk.Process[Any, Any, Any]:
    """Tells what state a key is in, and then keeps or discards it, at an item or at a timer."""

    @sk.process(key="key", event_time="at")
    def told(record: Number, ctx: sk.Context, state: sk.ValueState[str]) -> Iterator[str]:
        yield state.get() or "NEW"
        state.update("ITEM")
        if when == "item" and not retains:
            state.clear()
        if when == "timer":
            ctx.timers.set(record.at)

    @told.on_timer
    def notified(timer: sk.Timer, state: sk.ValueState[str]) -> Iterator[str]:
        yield f"notified in {state.get()}"
        state.update("NOTIFIED")
        if not retains:
            state.clear()

    return told


def test_discarded_values_are_new_again_and_kept_ones_are_not() -> None:
    """W9: two items, and a timer between them."""
    for retains, second in ((False, "NEW"), (True, "ITEM")):
        harness = Harness(stateful(retains=retains, when="item"))
        assert harness.send(*numbers(1, 1)) == ["NEW"]
        assert harness.send(*numbers(2, 2)) == [second]
        assert (harness.state("state", "k") is None) is not retains
    for retains, second in ((False, "NEW"), (True, "NOTIFIED")):
        harness = Harness(stateful(retains=retains, when="timer"))
        assert harness.send(*numbers(1, 1)) == ["NEW"]
        assert harness.send() == ["notified in ITEM"]
        assert harness.send(*numbers(2, 2)) == [second]


def test_state_is_kept_or_discarded_across_a_restart(tmp_path: Path) -> None:
    """W9: the input ends, and a later run goes on with more of it."""
    for retains, second in ((False, "NEW"), (True, "ITEM")):
        job = sk.Job("told")
        job.source("numbers", Number).process(stateful(retains=retains, when="item")).sink("out")
        place = tmp_path / str(retains)
        given = [*numbers(1, 1), *numbers(2, 2)]
        kept = job.run({"numbers": given[:1]}, checkpoint=place, drain=False)
        rest = job.run({"numbers": given}, checkpoint=place, drain=False)
        assert (kept["out"], rest["out"]) == (["NEW"], [second])


# ---------------------------------------------------------------- windows that look back (quix)


def looks_back(grace: str) -> sk.Process[Any, Any, Any]:
    """For each record, the ten seconds up to it, and up to those after it that it is within."""
    size, moment = dt.timedelta(seconds=10), dt.timedelta(microseconds=1)

    @sk.process(key="key", event_time="at", lateness=grace)
    def look_back(
        record: Text, seen: sk.MapState[tuple[dt.datetime, int], str], count: sk.ValueState[int]
    ) -> Iterator[tuple[float, float, str]]:
        number = count.get() or 0
        count.update(number + 1)
        seen[record.at, number] = record.value
        within = seen.scan((record.at, 0), (record.at + size + moment, 0))
        for end in sorted({place[0] for place, _ in within}):
            held = seen.scan((end - size, 0), (end + moment, 0))
            values = "".join(value for _, value in held)
            yield (end - size).timestamp(), end.timestamp(), values

    return look_back


def sent_singly(harness: Harness, *given: tuple[float, str]) -> list[list[Any]]:
    return [harness.send(Text("k", at(seconds), value)) for seconds, value in given]


def test_a_window_that_looks_back_has_the_records_of_its_ten_seconds_only() -> None:
    """Q1, Q3, Q9: a record behind another has a window of its own; one far ahead is alone."""
    found = sent_singly(
        Harness(looks_back("15 seconds")), (23, "A"), (12, "B"), (31, "C"), (31, "D")
    )
    assert found == [[(13, 23, "A")], [(2, 12, "B")], [(21, 31, "AC")], [(21, 31, "ACD")]]
    found = sent_singly(Harness(looks_back("15 seconds")), (29, "A"), (26, "B"), (41, "C"))
    assert found == [[(19, 29, "A")], [(16, 26, "B"), (19, 29, "BA")], [(31, 41, "C")]]


def test_without_lateness_late_records_are_dropped_and_counted() -> None:
    """Q7."""
    harness = Harness(looks_back("0 s"))
    found = sent_singly(harness, (1, "A"), (20, "B"), (5, "C"), (9, "C"))
    assert found == [[(-9, 1, "A")], [(10, 20, "B")], [], []]
    assert [late.at for late in harness.late] == [at(5), at(9)]
