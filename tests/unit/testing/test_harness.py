"""The harness keeps what it promises: real epochs, crashes, checkpoints and rescaling."""

from __future__ import annotations

import datetime as dt
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest

import statekit as sk
from statekit.keygroup import key_group, shard_of_group
from statekit.testing import Harness, states


class Event(NamedTuple):
    user: str | None
    shop: int
    value: int


@sk.process(key=("user", "shop"))
def spend(
    event: Event,
    last: sk.ValueState[int],
    values: sk.ListState[int],
    by_value: sk.MapState[int, int],
    most: Annotated[sk.ReducingState[int], sk.Reduce(max)],
) -> Iterator[int]:
    last.update(event.value)
    values.append(event.value)
    by_value[event.value] = by_value.get(event.value, 0) + 1
    most.add(event.value)
    yield event.value


@sk.process(key="user")
def count(event: Event, seen: Annotated[sk.ValueState[int], sk.Default(0)]) -> Iterator[int]:
    seen.update((seen.get() or 0) + 1)
    yield seen.get() or 0


BACKENDS: list[Literal["memory", "rocksdb"]] = ["memory", "rocksdb"]
USERS = [None, "", "a", "b"]
EVENTS = [Event(user, shop, value) for user in USERS for shop in (1, 2) for value in (3, 1, 3)]


def holdings(harness: Harness) -> dict[Any, list[Any]]:
    names = ("last", "values", "by_value", "most")
    keys = [(user, shop) for user in [*USERS, "nobody"] for shop in (1, 2)]
    return {key: [harness.state(name, key) for name in names] for key in keys}


@pytest.mark.parametrize(
    ("backend", "parallelism"), [("memory", 1), ("memory", 3), ("memory", 5), ("rocksdb", 3)]
)
def test_state_shows_plain_python_values(
    backend: Literal["memory", "rocksdb"], parallelism: int
) -> None:
    harness = Harness(spend, parallelism=parallelism, key_groups=10, backend=backend)
    assert sorted(harness.send(*EVENTS)) == sorted(event.value for event in EVENTS)
    assert holdings(harness)["a", 1] == [3, [3, 1, 3], {1: 1, 3: 2}, 3]
    assert holdings(harness)[None, 2] == [3, [3, 1, 3], {1: 1, 3: 2}, 3]
    assert holdings(harness)["nobody", 1] == [None, [], {}, None]
    assert (harness.parallelism, harness.key_groups, harness.epoch) == (parallelism, 10, 0)


def test_the_defaults_are_one_shard_and_128_key_groups_in_memory() -> None:
    harness = Harness(spend)
    assert (harness.parallelism, harness.key_groups, harness.epoch) == (1, 128, None)


def test_a_state_reads_as_its_declared_default() -> None:
    assert Harness(count).state("seen", "nobody") == 0


def test_shard_of_says_who_owns_a_key() -> None:
    harness = Harness(spend, parallelism=5)
    for key in ((None, 1), ("a", 2), ("", 3)):
        assert harness.shard_of(key) == shard_of_group(key_group(key, 128), 5, 128)
    assert Harness(count, parallelism=3).shard_of(None) == 42 * 3 // 128


def test_a_key_of_another_type_is_refused() -> None:
    for wrong in ("a", ("a",), ("a", "b"), (5, 5), ("a", 1, 2), None):
        with pytest.raises(sk.StateTypeError):
            Harness(spend).state("last", wrong)
        with pytest.raises(sk.StateTypeError):
            Harness(spend).shard_of(wrong)
    with pytest.raises(sk.StateTypeError):
        Harness(count).shard_of(5)


def test_an_unknown_state_is_refused_with_the_known_ones() -> None:
    with pytest.raises(sk.QueryError, match=r"no state 'lost'.*'last', 'values'"):
        Harness(spend).state("lost", ("a", 1))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="backend='disk'"):
        Harness(spend, backend="disk")  # type: ignore[call-overload]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_crash_loses_nothing_that_was_committed(backend: Literal["memory", "rocksdb"]) -> None:
    harness = Harness(spend, parallelism=3, backend=backend)
    harness.send(*EVENTS)
    before = holdings(harness)
    with pytest.raises(sk.StatekitError):
        harness.send(*EVENTS, Event("a", 1, 2**64))
    assert holdings(harness) == before
    harness.crash()
    assert holdings(harness) == before
    assert harness.epoch == 0
    harness.send(Event("a", 1, 9))
    assert harness.state("values", ("a", 1)) == [3, 1, 3, 9]
    assert harness.epoch == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_checkpoint_restores_at_any_parallelism(
    tmp_path: Path, backend: Literal["memory", "rocksdb"]
) -> None:
    harness = Harness(spend, parallelism=3, backend=backend)
    harness.send(*EVENTS[:11])
    harness.send(*EVENTS[11:])
    harness.checkpoint(tmp_path / "saved")
    harness.send(Event("a", 1, 99))
    expected = holdings(Harness.restore(spend, tmp_path / "saved"))
    assert expected["a", 1] == [3, [3, 1, 3], {1: 1, 3: 2}, 3]
    for parallelism in (1, 5, 128) if backend == "memory" else (2,):
        again = Harness.restore(spend, tmp_path / "saved", parallelism=parallelism, backend=backend)
        assert holdings(again) == expected
        assert (again.parallelism, again.epoch) == (parallelism, 1)
        again.send(Event("a", 1, 7))
        assert again.state("values", ("a", 1)) == [3, 1, 3, 7]
        assert again.state("values", ("b", 1)) == [3, 1, 3]


def test_restore_keeps_the_parallelism_by_default(tmp_path: Path) -> None:
    harness = Harness(spend, parallelism=3, key_groups=20)
    harness.send(*EVENTS)
    harness.checkpoint(tmp_path / "saved")
    again = Harness.restore(spend, tmp_path / "saved")
    assert (again.parallelism, again.key_groups) == (3, 20)


def test_a_restored_harness_is_independent_of_its_source(tmp_path: Path) -> None:
    harness = Harness(count)
    harness.send(Event("a", 1, 1))
    harness.checkpoint(tmp_path / "saved")
    first = Harness.restore(count, tmp_path / "saved")
    second = Harness.restore(count, tmp_path / "saved")
    assert first.send(Event("a", 1, 1)) == second.send(Event("a", 1, 1)) == [2]
    assert harness.send(Event("a", 1, 1), Event("a", 1, 1)) == [2, 3]


def test_a_checkpoint_is_not_written_over_another(tmp_path: Path) -> None:
    harness = Harness(count)
    harness.send(Event("a", 1, 1))
    harness.checkpoint(tmp_path)
    with pytest.raises(sk.StatekitError, match="contains a checkpoint already"):
        harness.checkpoint(tmp_path)


def test_nothing_is_restored_from_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(sk.RestoreError, match="no checkpoint at"):
        Harness.restore(count, tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_harness_continues_from_a_directory(tmp_path: Path) -> None:
    Harness(count, parallelism=2, checkpoint=tmp_path).send(Event("a", 1, 1))
    assert Harness(count, checkpoint=tmp_path).send(Event("a", 1, 1)) == [2]
    again = Harness(count, checkpoint=tmp_path, parallelism=4, backend="rocksdb")
    assert again.send(Event("a", 1, 1)) == [3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_second_of_two_writers_is_fenced(
    tmp_path: Path, backend: Literal["memory", "rocksdb"]
) -> None:
    first = Harness(count, checkpoint=tmp_path, backend=backend)
    second = Harness(count, checkpoint=tmp_path, backend=backend)
    assert first.send(Event("a", 1, 1)) == [1]
    for _ in range(2):
        with pytest.raises(sk.FencedError, match="another run"):
            second.send(Event("a", 1, 1), Event("b", 1, 1))
    assert first.send(Event("a", 1, 1)) == [2]
    second.crash()
    assert second.send(Event("a", 1, 1)) == [3]
    assert second.state("seen", "b") == 0
    with pytest.raises(sk.FencedError):
        first.send(Event("a", 1, 1))


def test_an_epoch_without_records_commits_too() -> None:
    harness = Harness(count, parallelism=2)
    assert harness.send() == []
    assert harness.epoch == 0


def test_a_harness_leaves_no_directory() -> None:
    harness = Harness(count, backend="rocksdb")
    harness.send(Event("a", 1, 1))
    assert harness._directory is not None
    directory = Path(harness._directory)
    assert directory.is_dir()
    del harness
    gc.collect()
    assert not directory.exists()


def test_bound_states_are_states_of_one_key_in_memory() -> None:
    given = states(spend, ("a", 1))
    assert list(spend(Event("a", 1, 5), **given)) == [5]
    assert given["values"].get() == [5]
    assert dict(given["by_value"]) == {5: 1}
    assert states(spend, ("a", 1))["values"].get() == []


@sk.process(key="word")
def records(record: dict[str, Any], ctx: sk.Context, seen: sk.ValueState[int]) -> Iterator[str]:
    seen.update((seen.get() or 0) + 1)
    yield f"{ctx.key} {seen.get()}"


def test_a_function_may_be_named_like_the_stream_it_is_fed_from() -> None:
    assert Harness(records).send({"word": "a"}) == ["a 1"]


def test_a_function_with_a_context_can_be_called_directly() -> None:
    given = states(records, "a")
    assert list(records({"word": "a"}, **given)) == ["a 1"]


def test_a_function_called_directly_has_the_time_and_the_key_that_the_test_gives() -> None:
    class Visit(NamedTuple):
        user: str
        at: dt.datetime

    @sk.process(key="user", event_time="at")
    def told(visit: Visit, ctx: sk.Context) -> Iterator[tuple[Any, dt.datetime, dt.datetime]]:
        yield ctx.key, ctx.event_time, ctx.processing_time

    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    visit = Visit("ada", noon)
    assert list(told(visit, **states(told, "ada", at=noon))) == [("ada", noon, noon)]
    began = dt.datetime.fromtimestamp(0, dt.UTC)
    assert list(told(visit, **states(told))) == [(None, began, began)]


def test_states_of_something_else_are_refused() -> None:
    with pytest.raises(sk.StateTypeError, match=r"states\(\) takes a function decorated with"):
        states(len)  # type: ignore[arg-type]


def test_restoring_from_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sk.RestoreError, match="contains no checkpoint"):
        Harness.restore(records, tmp_path)


def test_late_records_are_shown_in_the_order_in_which_they_were_sent() -> None:
    class Event(NamedTuple):
        key: str
        at: dt.datetime

    @sk.process(key="key", event_time="at", lateness="5 seconds")
    def keep(event: Event, seen: sk.ValueState[int]) -> Iterator[str]:
        yield event.key

    def event(key: str, seconds: int) -> Event:
        return Event(key, dt.datetime.fromtimestamp(seconds, dt.UTC))

    harness = Harness(keep, parallelism=3)
    assert not harness.late
    harness.send(event("a", 100))
    assert harness.send(event("c", 95), event("b", 96), event("a", 3)) == ["b"]
    assert harness.send(event("b", 95)) == []
    assert harness.late == [event("c", 95), event("a", 3), event("b", 95)]


def test_a_harness_may_drop_state(tmp_path: Path) -> None:
    Harness(count, checkpoint=tmp_path / "stored").send(Event("ada", 1, 1))

    @sk.process(key="user", migrate={})
    def renamed(event: Event, visits: sk.ValueState[int]) -> None:
        visits.update(1)

    renamed.name = count.name
    for made in (Harness.restore, lambda of, path, **given: Harness(of, checkpoint=path, **given)):
        with pytest.raises(sk.StateSchemaError, match="allow_dropped_state=True"):
            made(renamed, tmp_path / "stored")
        harness = made(renamed, tmp_path / "stored", allow_dropped_state=True)
        harness.send(Event("ada", 1, 2))
        harness.crash()
        assert harness.state("visits", "ada") == 1
