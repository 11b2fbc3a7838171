"""Entries of a map in both directions, and the greatest one at or below a key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.codec.key_codec import key_codec
from statekit.state.closed_bounds import ClosedBounds
from statekit.testing import Harness
from tests.support.instants import at

Backend = Literal["memory", "rocksdb"]
KEYS = st.integers(-2, 5)


class Call(NamedTuple):
    key: str
    name: str
    lo: int | None = None
    hi: int | None = None
    closed: ClosedBounds = "left"
    after: int | None = None


@sk.process(key="key")
def calls(call: Call, entries: sk.MapState[int, int]) -> Iterator[Any]:
    if call.name == "put":
        entries[call.lo or 0] = call.hi or 0
    elif call.name == "delete":
        entries.pop(call.lo or 0, None)
    elif call.name == "clear":
        entries.clear()
    elif call.name == "floor":
        yield entries.floor(call.lo or 0)
    elif call.name == "count":
        yield entries.count(call.lo, call.hi, closed=call.closed)
    elif call.name == "remove":
        yield entries.remove_range(call.lo, call.hi, closed=call.closed)
    elif call.name == "trim":
        yield entries.trim(max(call.lo or 0, 0))
    else:
        reverse = call.name == "reverse"
        options: Any = {"closed": call.closed, "after": call.after}
        yield list(entries.scan(call.lo, call.hi, reverse=reverse, **options))


def by_model(history: list[Call]) -> list[Any]:
    """The same over plain dicts."""
    stores: dict[str, dict[int, int]] = {}
    outputs: list[Any] = []
    for call in history:
        store = stores.setdefault(call.key, {})
        if call.name == "put":
            store[call.lo or 0] = call.hi or 0
        elif call.name == "delete":
            store.pop(call.lo or 0, None)
        elif call.name == "clear":
            store.clear()
        elif call.name == "floor":
            below = [key for key in store if key <= (call.lo or 0)]
            outputs.append((max(below), store[max(below)]) if below else None)
        elif call.name == "trim":
            removed = sorted(store, reverse=True)[max(call.lo or 0, 0) :]
            outputs.append(len([store.pop(key) for key in removed]))
        else:
            within = [(key, store[key]) for key in sorted(store) if is_within(key, call)]
            if call.name == "remove":
                for key, _ in within:
                    del store[key]
            if call.name in ("count", "remove"):
                outputs.append(len(within))
                continue
            in_order = within[::-1] if call.name == "reverse" else within
            outputs.append([entry for entry in in_order if is_behind(entry[0], call)])
    return outputs


def is_behind(key: int, call: Call) -> bool:
    if call.after is None:
        return True
    return key < call.after if call.name == "reverse" else key > call.after


def is_within(key: int, call: Call) -> bool:
    if key == call.lo and call.closed not in ("left", "both"):
        return False
    if key == call.hi and call.closed not in ("right", "both"):
        return False
    return (call.lo is None or key >= call.lo) and (call.hi is None or key <= call.hi)


NAMES = ["put", "delete", "clear", "floor", "scan", "reverse", "count", "remove", "trim"]
CALLS = st.builds(
    Call,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["put", "put", *NAMES]),
    st.none() | KEYS,
    st.none() | KEYS,
    st.sampled_from(["left", "right", "both", "none"]),
    st.none() | KEYS,
)


@given(
    st.lists(st.lists(CALLS, max_size=12), min_size=1, max_size=4),
    st.sampled_from(["memory", "rocksdb"]),
)
@settings(max_examples=60, deadline=None)
def test_scans_in_both_directions_and_floors_are_those_of_a_plain_dict(
    epochs: list[list[Call]], backend: Backend
) -> None:
    harness = Harness(calls, backend=backend)
    history: list[Call] = []
    for epoch in epochs:
        ordered = sorted(epoch, key=lambda call: call.key)  # a shard goes from key to key
        before = len(by_model(history))
        history += ordered
        assert harness.send(*ordered) == by_model(history)[before:]


def test_a_floor_reads_one_row_however_many_the_map_has(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(calls, backend="rocksdb")
    harness.send(*(Call("a", "put", number, number) for number in range(1_000)))
    read: list[int] = []
    state = sk.MapState
    decoded = state._decoded

    def counted(self: Any, rows: Any, *given: Any, **named: Any) -> Any:
        def passed() -> Iterator[Any]:
            for row in rows:
                read.append(1)
                yield row

        return decoded(self, passed(), *given, **named)

    monkeypatch.setattr(state, "_decoded", counted)
    assert harness.send(Call("a", "floor", 500)) == [(500, 500)]
    assert len(read) == 1


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_expired_entries_are_in_no_direction(backend: Backend) -> None:
    @sk.process(key="key", event_time="at")
    def brief(
        step: Step, entries: Annotated[sk.MapState[int, int], sk.TTL("10 seconds", clock="event")]
    ) -> Iterator[Any]:
        yield entries.floor(9), list(entries.scan(reverse=True))
        entries[step.number] = step.number

    harness = Harness(brief, backend=backend)
    harness.send(Step("a", at(1), 1))
    harness.advance_watermark(at(5))
    assert harness.send(Step("a", at(6), 2)) == [((1, 1), [(1, 1)])]
    harness.advance_watermark(at(12))
    assert harness.send(Step("a", at(13), 3)) == [((2, 2), [(2, 2)])]


class Step(NamedTuple):
    key: str
    at: dt.datetime
    number: int


class Pair(NamedTuple):
    word: str
    number: int


TEXTS = st.text(alphabet="a\0b", max_size=3)
PREFIXED: dict[Any, tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    str: (TEXTS, TEXTS),
    bytes: (st.binary(max_size=3), st.binary(max_size=2)),
    tuple[str, int]: (st.tuples(TEXTS, KEYS), st.tuples() | st.tuples(TEXTS)),
    Pair: (st.builds(Pair, TEXTS, KEYS), st.tuples() | st.tuples(TEXTS)),
    tuple[str, ...]: (st.lists(TEXTS).map(tuple), st.lists(TEXTS, max_size=2).map(tuple)),
    str | None: (st.none() | TEXTS, TEXTS),
}
"""Keys and prefixes, by the type of the keys."""


@pytest.mark.parametrize("of", list(PREFIXED), ids=str)
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_bytes_of_keys_begin_with_those_of_their_prefixes_only(of: Any, data: Any) -> None:
    keys, prefixes = PREFIXED[of]
    key, prefix, codec = data.draw(keys), data.draw(prefixes), key_codec(of)
    begins = key is not None and (
        key.startswith(prefix) if isinstance(key, str | bytes) else key[: len(prefix)] == prefix
    )
    assert codec.encode(key).startswith(codec.encode_prefix(prefix)) == begins


@pytest.mark.parametrize(("of", "prefix"), [(int, 1), (str, b"a"), (tuple[str, int], "a")])
def test_a_prefix_that_keys_cannot_have_is_refused(of: Any, prefix: Any) -> None:
    with pytest.raises(sk.StateTypeError, match=r"no prefix|cannot be"):
        key_codec(of).encode_prefix(prefix)
