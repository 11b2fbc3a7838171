"""The core loop: errors that say where, outputs of any number, keys in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.backend.interface import FirstKey, MemoryBackend, NextKeys, RowReads
from statekit.backend.mutation import Batch
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.functions.process import Process
from statekit.keygroup import key_group, pack_group
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.task import ShardTask
from statekit.testing import Harness


class Event(NamedTuple):
    user: str
    value: int


@sk.process(key="user")
def add(event: Event, total: sk.ValueState[int], seen: sk.ListState[int]) -> Iterator[int]:
    if event.value < 0:
        raise ValueError(f"{event.value} is negative")
    seen.append(event.value)
    total.update((total.get() or 0) + event.value)
    yield total.get() or 0


class Task:
    """A task over a backend in memory, with what it spilled."""

    def __init__(
        self, declared: Process[Any, Any, Any], kind: type[MemoryBackend] = MemoryBackend
    ) -> None:
        self.backend = kind(declared.families)
        self.spilled: list[int] = []
        base = ShardState(first_group=0, last_group=127)
        plan = ShardPlan("checkpoint", "op", 0, 0, base, None)
        self.task = ShardTask(declared, plan, self.backend, self.spill)

    def spill(self, batch: Batch) -> None:
        self.spilled.append(len(batch))
        self.backend.write(batch)

    def run(self, *records: Event) -> list[Any]:
        keys = [record.user for record in records]
        groups = [key_group(key) for key in keys]
        return [
            out for part in self.task.run(KeyedBatch(keys, groups, keys, records)) for out in part
        ]


def test_outputs_come_in_the_order_of_the_records() -> None:
    assert Task(add).run(Event("a", 1), Event("a", 2), Event("a", 3)) == [1, 3, 6]


def test_a_key_may_continue_in_the_next_batch() -> None:
    task = Task(add)
    assert task.run(Event("a", 1)) + task.run(Event("a", 2)) == [1, 3]
    assert not task.spilled
    task.task.finish()
    assert (task.task.records_by_input[0], task.task.records_out) == (2, 2)


def test_a_key_that_comes_back_after_others_finds_its_state() -> None:
    records = [Event("a", 1), Event("b", 10), Event("a", 2), Event("b", 20), Event("a", 3)]
    assert Task(add).run(*records) == [1, 10, 3, 30, 6]


class Told(MemoryBackend):
    """Notes what states say comes after each key that they read."""

    def __init__(self, states: list[str]) -> None:
        super().__init__(states)
        self.told: list[tuple[bytes, list[bytes]]] = []

    def reader(
        self, state: str, next_keys: NextKeys | None = None, first_key: FirstKey | None = None
    ) -> RowReads:
        reader = super().reader(state)
        if next_keys is None:
            return reader

        def asked(key: bytes) -> bytes | None:
            self.told.append((key, list(next_keys(key))))
            return reader.get(key)

        return reader._replace(get=asked)


@sk.process(key="user")
def set_and_count(event: Event, last: sk.ValueState[int], total: sk.ValueState[int]) -> None:
    total.update((total.get() or 0) + 1)
    last.update(max(last.get() or 0, event.value))


def test_every_state_of_a_key_gets_the_predicted_keys() -> None:
    task = Task(set_and_count, Told)
    users = sorted((f"u{number}" for number in range(100)), key=lambda u: (key_group(u), u))
    for chunk in users[:90], users[90:]:
        task.run(*(Event(user, 1) for user in chunk for _ in range(2)))
    task.task.finish()
    encode = set_and_count.key_codec.encode
    rows = [pack_group(key_group(user)) + encode(user) for user in users]
    assert isinstance(task.backend, Told)
    assert sorted(key for key, _ in task.backend.told) == sorted(2 * rows)
    for key, predicted in task.backend.told:
        later = rows[rows.index(key) + 1 :]
        assert predicted == later[: len(predicted)]
        assert predicted or rows.index(key) in (89, 99)  # the last keys of a batch


class AskedForMany(MemoryBackend):
    """Notes for which rows it is asked together, and for which one by one."""

    def __init__(self, states: list[str]) -> None:
        super().__init__(states)
        self.together: list[list[bytes]] = []
        self.alone: list[bytes] = []

    def reader(
        self, state: str, next_keys: NextKeys | None = None, first_key: FirstKey | None = None
    ) -> RowReads:
        reader = super().reader(state)

        def get(key: bytes) -> bytes | None:
            self.alone.append(key)
            return reader.get(key)

        def get_all(keys: Sequence[bytes]) -> list[bytes | None]:
            self.together.append(list(keys))
            return reader.get_all(keys)

        return reader._replace(get=get, get_all=get_all)


@sk.process(key="user")
def set_entry(event: Event, entries: sk.MapState[int, int]) -> None:
    entries[event.value] = event.value


def test_rows_that_are_set_without_a_read_are_looked_up_together_in_order_and_counted() -> None:
    task = Task(set_entry, AskedForMany)
    assert isinstance(task.backend, AskedForMany)
    task.run(*(Event("u", value) for value in (700, *range(300, 0, -1))))
    assert task.task.finish()["entries"].rows == 301
    assert not task.backend.alone
    assert [len(keys) for keys in task.backend.together] == [1, 2, 4, 8, 16, 32, 64, 128, 46]
    asked = list(chain.from_iterable(task.backend.together))
    assert asked == sorted(set(asked))
    later = Task(set_entry, AskedForMany)
    later.backend.write(task.task.batch)
    later.run(*(Event("u", value) for value in (301, 300, 700)))
    assert later.task.finish()["entries"].rows == 1


@sk.process(key="user")
def set_blob(event: Event, blobs: sk.MapState[int, bytes]) -> None:
    blobs[event.value] = bytes(200_000)


def test_large_rows_that_are_set_without_a_read_are_not_looked_up_together() -> None:
    task = Task(set_blob, AskedForMany)
    task.run(*(Event("u", value) for value in range(20)))
    task.task.finish()
    again = Task(set_blob, AskedForMany)
    again.backend.write(task.task.batch)
    again.run(*(Event("u", value) for value in range(20)))
    assert again.task.finish()["blobs"].rows == 0
    assert isinstance(again.backend, AskedForMany)
    assert [len(keys) for keys in again.backend.together] == [1, 2] * 6 + [1, 1]


def test_a_key_that_cannot_be_one_fails_when_it_is_visited_and_not_before() -> None:
    task = Task(set_and_count, Told)
    good = sorted("abc", key=lambda user: (key_group(user), user))
    handled = [Event(user, 1) for user in good] + [Event(5, 1)]  # type: ignore[arg-type]
    keys = [event.user for event in handled]
    groups = [*(key_group(user) for user in good), 127]
    with pytest.raises(sk.ProcessError, match=r"\(user\) = 5 of record .*cannot be a key"):
        list(task.task.run(KeyedBatch(keys, groups, keys, handled)))
    assert isinstance(task.backend, Told)
    rows = [pack_group(key_group(user)) + set_and_count.key_codec.encode(user) for user in good]
    assert list(dict.fromkeys(key for key, _ in task.backend.told)) == rows


def test_a_full_batch_is_handed_on_between_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statekit.backend.mutation.BATCH_ROWS_MAX", 4)
    monkeypatch.setattr("statekit.runtime.key_iteration.KEYS_MAX", 1)
    task = Task(add)
    users = sorted((f"u{n}" for n in range(20)), key=lambda u: (key_group(u), u))
    task.run(*(Event(user, 1) for user in users))
    task.task.finish()
    assert len(task.spilled) >= 9
    assert max(task.spilled) <= 6


@sk.process(key="user")
def many(event: Event, total: sk.ValueState[int]) -> Iterator[int]:
    for number in range(event.value):
        total.update(number)
        yield number


def test_one_record_may_emit_a_million_without_keeping_them_in_memory() -> None:
    task = Task(many)
    seen = parts = 0
    chunk = KeyedBatch(["a"], [0], ["a"], [Event("a", 1_000_000)])
    for part in task.task.run(chunk):
        assert part[0] == seen
        assert len(part) <= 2 * many.traits.outputs_at_once
        seen += len(part)
        parts += 1
    assert seen == task.task.records_out == 1_000_000
    assert parts >= 50


def test_a_million_outputs_of_one_record_arrive_through_the_harness() -> None:
    harness = Harness(many)
    outputs = harness.send(Event("a", 1_000_000))
    assert outputs[-1] == 999_999
    assert len(outputs) == 1_000_000
    assert harness.state("total", "a") == 999_999


def test_an_error_of_the_function_names_operator_key_and_record_and_changes_nothing() -> None:
    harness = Harness(add, parallelism=2)
    harness.send(Event("a", 1), Event("b", 2))
    with pytest.raises(sk.ProcessError) as caught:
        harness.send(Event("b", 5), Event("a", 5), Event("a", -3), Event("c", 5))
    for part in ("'add'", "'a'", "Event(user='a', value=-3)", "ValueError: -3 is negative"):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert [harness.state("total", key) for key in "abc"] == [1, 2, None]
    assert [harness.state("seen", key) for key in "abc"] == [[1], [2], []]
    assert harness.epoch == 0
    assert sorted(harness.send(Event("a", 2), Event("b", 2))) == [3, 4]
    assert [harness.state("total", key) for key in "ab"] == [3, 4]


def test_a_long_record_is_cut_in_messages() -> None:
    with pytest.raises(sk.ProcessError) as caught:
        Harness(add).send(Event("x" * 100_000, -1))
    assert "…" in str(caught.value)


class Maybe(NamedTuple):
    user: str | None


def test_a_record_without_its_key_field_is_refused() -> None:
    @sk.process(key="user")
    def plain(record: dict[str, Any], total: sk.ValueState[int]) -> None: ...

    with pytest.raises(sk.ProcessError, match=r"plain.*'record'.*has no 'user'.*\{'value': 1\}"):
        Harness(plain).send({"value": 1})


def test_records_of_the_wrong_type_are_refused() -> None:
    for wrong in ({"user": "a"}, {"user": 5, "value": 1}, 5, ("a", 1), None):
        with pytest.raises(sk.ProcessError, match="'add', source 'records'"):
            Harness(add).send(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [None, 5, 1.5, ["a"]])
def test_a_key_of_the_wrong_type_is_refused(key: Any) -> None:
    with pytest.raises(sk.ProcessError, match=r"'add'.*\(user\) = .*cannot be a key"):
        Harness(add).send(Event(key, 1))


def test_a_null_key_is_fine_where_it_is_declared() -> None:
    @sk.process(key="user")
    def count(record: Maybe, seen: sk.ValueState[int]) -> Iterator[tuple[str | None, int]]:
        seen.update((seen.get() or 0) + 1)
        yield record.user, seen.get() or 0

    harness = Harness(count)
    outputs = harness.send(Maybe(None), Maybe(""), Maybe(None))
    assert sorted(outputs, key=repr) == [("", 1), (None, 1), (None, 2)]
    assert (harness.state("seen", None), harness.state("seen", "")) == (2, 1)


def wrong_output(event: Event) -> Iterator[int]:
    yield event.value
    yield "text"  # type: ignore[misc]


def output_beyond_64_bits(event: Event) -> Iterator[int]:
    yield 2**64


def none_output(event: Event) -> Iterator[int]:
    yield None  # type: ignore[misc]


@pytest.mark.parametrize("fn", [wrong_output, output_beyond_64_bits, none_output])
def test_an_output_that_does_not_fit_is_refused_and_nothing_is_committed(fn: Any) -> None:
    harness = Harness(sk.process(key="user")(fn))
    with pytest.raises(sk.ProcessError, match=f"{fn.__name__}.*int"):
        harness.send(Event("a", 1))
    assert harness.epoch is None


def test_outputs_of_a_function_that_declares_none_are_refused() -> None:
    @sk.process(key="user")
    def silent(event: Event) -> None:
        return [event.value]  # type: ignore[return-value]

    with pytest.raises(sk.ProcessError, match="'silent' yielded 1 and is declared to return None"):
        Harness(silent).send(Event("a", 1))


def test_a_result_that_cannot_be_iterated_is_refused() -> None:
    @sk.process(key="user")
    def number(event: Event) -> Iterator[int]:
        return event.value  # type: ignore[return-value]

    with pytest.raises(sk.ProcessError, match="not iterable"):
        Harness(number).send(Event("a", 1))


def test_a_stop_iteration_of_the_function_is_an_error_and_not_an_end() -> None:
    @sk.process(key="user")
    def stops(event: Event) -> Iterator[int]:
        raise StopIteration

    @sk.process(key="user")
    def stops_inside(event: Event) -> Iterator[int]:
        yield next(iter(()))

    for declared in (stops, stops_inside):
        with pytest.raises(sk.ProcessError, match="StopIteration"):
            Harness(declared).send(Event("a", 1))


def test_a_state_error_says_which_record_was_handled() -> None:
    @sk.process(key="user")
    def wrong(event: Event, total: sk.ValueState[int]) -> None:
        total.update("text")  # type: ignore[arg-type]

    with pytest.raises(
        sk.StateTypeError, match="'total' of operator 'wrong' at key 'a' in epoch 0"
    ) as caught:
        Harness(wrong).send(Event("a", 1))
    assert "Event(user='a', value=1)" in caught.value.__notes__[0]


def test_a_value_without_bytes_fails_the_epoch_by_name_when_its_key_is_left() -> None:
    @sk.process(key="user")
    def huge(event: Event, total: sk.ValueState[int]) -> None:
        total.update(event.value)

    harness = Harness(huge)
    for others in ((), (Event("b", 1), Event("c", 1))):
        with pytest.raises(sk.StateTypeError, match="'total' of operator 'huge' at key 'a'"):
            harness.send(Event("a", 2**64), *others)
    assert harness.epoch is None


def test_keyboard_interrupts_pass_and_nothing_is_committed() -> None:
    @sk.process(key="user")
    def interrupted(event: Event, total: sk.ValueState[int]) -> None:
        total.update(event.value)
        if event.value < 0:
            raise KeyboardInterrupt

    harness = Harness(interrupted, backend="rocksdb")
    harness.send(Event("a", 1))
    with pytest.raises(KeyboardInterrupt):
        harness.send(Event("a", 2), Event("a", -1))
    assert harness.state("total", "a") == 1
    harness.send(Event("a", 3))
    assert harness.state("total", "a") == 3


def test_an_error_at_leaving_a_key_does_not_blame_the_next_record() -> None:
    @sk.process(key="word")
    def big(record: dict[str, Any], seen: sk.ValueState[int]) -> None:
        seen.update(record["n"])

    with pytest.raises(sk.StateTypeError, match="at key 'a' in epoch 0") as caught:
        Harness(big).send({"word": "a", "n": 2**80}, {"word": "b", "n": 1})
    assert not any("'b'" in note for note in getattr(caught.value, "__notes__", []))


def test_large_rows_are_handed_on_before_they_fill_memory() -> None:
    @sk.process(key="word")
    def keep(
        record: dict[str, Any], blobs: sk.ListState[bytes], named: sk.MapState[int, str]
    ) -> None:
        for number in range(40):
            blobs.append(b"x" * 1_000_000)
            named[number] = "y" * 1_000_000
            assert blobs._pending_bytes < 20_000_000
            assert named._known_bytes < 20_000_000

    harness = Harness(keep)
    harness.send({"word": "a"})
    assert len(harness.state("blobs", "a")) == len(harness.state("named", "a")) == 40
