"""From key to key: what is visited is what there is, however it is cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice, pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.backend.interface import MemoryBackend
from statekit.backend.mutation import Batch
from statekit.codec.key_codec import key_codec
from statekit.keygroup import key_group, pack_group
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.key_iteration import KEYS_MAX, KeyIteration
from statekit.state.key_scope import KeyScope
from statekit.testing import Harness

FEW = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Event(NamedTuple):
    user: str
    value: int


def visit_of(backend: MemoryBackend | None = None) -> KeyScope:
    """A visit whose spilled batches go to a backend, or nowhere."""
    batch = Batch()

    def spill() -> None:
        if backend is not None:
            backend.write(batch)
        batch.clear()

    return KeyScope("op", 0, batch, spill)


def chunks_of(keys: list[str], cuts: list[int]) -> list[KeyedBatch]:
    """Records numbered from 0, cut into chunks."""
    groups = [key_group(key) for key in keys]
    whole = KeyedBatch(keys, groups, keys, range(len(keys)))
    ends = [0, *sorted(cuts), len(keys)]
    return [whole.part(start, end) for start, end in pairwise(ends)]


@st.composite
def cut_up(draw: st.DrawFn) -> tuple[list[str], list[int]]:
    counts = draw(st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 5), min_size=1))
    order = sorted(counts, key=lambda key: (key_group(key), key))
    keys = [key for key in order for _ in range(counts[key])]
    return keys, draw(st.lists(st.integers(0, len(keys)), max_size=4))


@FEW
@given(cut_up())
def test_every_record_comes_when_its_key_is_visited(given: tuple[list[str], list[int]]) -> None:
    keys, cuts = given
    visit = visit_of()
    walk = KeyIteration(visit, key_codec(str), ("user",))
    seen = [
        (visit.key, visit.prefix, record)
        for chunk in chunks_of(keys, cuts)
        for record in walk.records(chunk, iter(chunk.records))
    ]
    encode = key_codec(str).encode
    assert seen == [
        (key, pack_group(key_group(key)) + encode(key), at) for at, key in enumerate(keys)
    ]


@FEW
@given(cut_up(), st.integers(0, 6))
def test_a_key_has_one_run_whatever_chunks_it_is_in_and_however_much_of_it_is_taken(
    given: tuple[list[str], list[int]], taken: int
) -> None:
    keys, cuts = given
    visit = visit_of()
    walk = KeyIteration(visit, key_codec(str), ("user",))
    runs = walk.runs(iter(chunks_of(keys, cuts)))
    found = [(visit.key, list(islice(records, taken))) for records in runs]
    whole = groupby(range(len(keys)), keys.__getitem__)
    assert found == [(key, list(records)[:taken]) for key, records in whole]


class Large(NamedTuple):
    key: int
    size: int


@sk.process(key="key")
def keep(record: Large, held: sk.ValueState[bytes]) -> None:
    held.update(bytes(record.size))


def handed_on(size: int) -> list[int]:
    """How many rows are handed on at a time when each has so many bytes."""
    backend = MemoryBackend(["held"])
    visit = visit_of(backend)
    (spec,) = keep.states
    state: Any = spec.bind(visit, backend)
    walk = KeyIteration(visit, keep.key_codec, ("key",))
    counts, before = [], 0
    for key in range(2 * KEYS_MAX):
        walk.enter(walk.prefix(0, key, None), key)
        now = len(visit.batch) + len(list(backend.scan("held", b"", b"\xff")))
        if now > before:
            counts.append(now - before)
            before = now
        state.update(bytes(size))
    return counts


def test_rows_are_handed_on_by_hundreds_and_large_ones_soon() -> None:
    assert max(handed_on(10)) > 100
    large = handed_on(1024 * 1024)
    assert max(large) <= KEYS_MAX // 16 + 1
    assert large[-1] <= 2


def test_a_value_that_cannot_be_encoded_names_its_own_key_also_in_a_later_flush() -> None:
    @sk.process(key="user")
    def total(event: Event, held: sk.ValueState[int]) -> None:
        held.update(2**64 if event.user == "b" else 1)

    events = [Event(user, 1) for user in "abcdefgh"]
    with pytest.raises(sk.StateTypeError, match=r"state 'held' of operator 'total' at key 'b'"):
        Harness(total).send(*events)


def test_a_plain_function_that_raises_stop_iteration_fails_the_epoch() -> None:
    @sk.process(key="user")
    def first(event: Event, held: sk.ValueState[int]) -> list[int]:
        held.update(next(iter(range(0))))
        return [1]

    with pytest.raises(sk.ProcessError, match="StopIteration"):
        Harness(first).send(Event("a", 1), Event("b", 2))


def test_an_error_shows_the_record_that_was_handled() -> None:
    @sk.process(key="user")
    def picky(event: Event, held: sk.ValueState[int]) -> Iterator[int]:
        held.update(event.value)
        if event.value == 3:
            raise ValueError("three")
        yield event.value

    events = [Event("a", value) for value in range(6)]
    with pytest.raises(sk.ProcessError, match=r"three; the record was Event\(user='a', value=3\)"):
        Harness(picky).send(*events)


@FEW
@given(st.lists(st.integers(-(2**65), 2**65) | st.integers(-3, 3) | st.booleans(), max_size=5))
def test_ints_are_encoded_together_as_they_are_one_by_one(keys: list[int]) -> None:
    assert_same_together(int, keys)


@FEW
@given(st.lists(st.text(max_size=3) | st.sampled_from(["\0", "a\0b", "\ud800"]), max_size=5))
def test_texts_are_encoded_together_as_they_are_one_by_one(keys: list[str]) -> None:
    assert_same_together(str, keys)


def assert_same_together(kind: Any, keys: list[Any]) -> None:
    codec = key_codec(kind)
    try:
        expected = [codec.encode(key) for key in keys]
    except sk.StateTypeError:
        with pytest.raises(sk.StateTypeError):
            codec.encode_all(keys)
    else:
        assert codec.encode_all(keys) == expected
