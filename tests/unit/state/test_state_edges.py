"""States at their edges: refusals and their messages, ownership, order, clear and rewrite."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest

import statekit as sk
from statekit.backend.interface import MemoryBackend
from statekit.backend.mutation import Batch
from statekit.codec.key_codec import key_codec
from statekit.state.key_scope import KeyScope
from tests.support.state_driver import KEYS, SPECS, Box, Driver, Row

Make = Callable[..., Driver]
Write = Callable[[Any], object]


@pytest.fixture
def driver() -> Iterator[Make]:
    made: list[Driver] = []

    def make(*names: str) -> Driver:
        made.append(Driver(list(names)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def refusal(write: Write, state: Any) -> str:
    with pytest.raises(sk.StateTypeError) as caught:
        write(state)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "write", "type_"),
    [
        ("number", lambda state: state.update("x"), "int"),
        ("number", lambda state: state.update(True), "int"),
        ("number", lambda state: state.update(None), "int"),
        ("box", lambda state: state.update(Box(["x"])), "int"),  # type: ignore[list-item]
        ("numbers", lambda state: state.append(1.5), "int"),
        ("numbers", lambda state: state.append(None), "int"),
        ("numbers", lambda state: state.extend(["x"]), "int"),
        ("numbers", lambda state: state.update([1, "x"]), "int"),
        ("by_number", lambda state: state.__setitem__(1, 2), "str"),
        ("by_number", lambda state: state.__setitem__("1", "x"), "int"),
        ("by_number", lambda state: state.get("1"), "int"),
        ("by_number", lambda state: state.scan("1", None), "int"),
        ("by_number", lambda state: state.scan(None, "1"), "int"),
        ("total", lambda state: state.add("x"), "int"),
        ("joined", lambda state: state.add(["x"]), "int"),
        ("mean", lambda state: state.add("x"), "float"),
    ],
)
def test_a_value_that_does_not_fit_names_operator_state_key_and_type(
    driver: Make, name: str, write: Write, type_: str
) -> None:
    made = driver(name)
    made.enter("b")
    message = refusal(write, made.states[name])
    for part in ("'op'", repr(name), "'b'", type_):
        assert part in message
    made.enter("a")
    assert not list(made.backend.scan(name, b"\x00", b"\xff"))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("number", lambda state: state.update(2**63 + 2**63)),
        ("box", lambda state: state.update(Box([2**64]))),
        ("numbers", lambda state: state.update([1, 2**64])),
        ("numbers", lambda state: state.append(2**64)),
        ("boxes", lambda state: state.__setitem__(("x", True), Box([2**64]))),
        ("by_number", lambda state: state.__setitem__(1, "\ud800")),
        ("total", lambda state: state.add(2**64)),
        ("joined", lambda state: state.add([2**64])),
    ],
)
def test_a_value_of_the_right_type_that_has_no_bytes_is_refused_before_the_key_is_left(
    driver: Make, name: str, write: Write
) -> None:
    made = driver(name)
    made.enter("b")

    def write_and_leave() -> None:
        write(made.states[name])
        made.scope.flush()

    with pytest.raises(sk.StateTypeError) as caught:
        write_and_leave()
    for part in ("'op'", repr(name), "'b'"):
        assert part in str(caught.value)
    assert not len(made.scope.batch)


def test_a_list_update_that_cannot_be_encoded_keeps_the_old_list(driver: Make) -> None:
    numbers = driver("numbers").states["numbers"]
    numbers.extend([1, 2])
    refusal(lambda state: state.update([3, 2**64]), numbers)
    assert numbers.get() == [1, 2]


def test_extend_keeps_the_elements_before_the_one_that_does_not_fit(driver: Make) -> None:
    numbers = driver("numbers").states["numbers"]
    refusal(lambda state: state.extend([1, 2, "x", 3]), numbers)
    assert numbers.get() == [1, 2]


def test_a_subclass_is_refused_because_it_would_lose_fields(driver: Make) -> None:
    class Bigger(Box):
        pass

    assert "subclass" in refusal(lambda s: s.update(Bigger([])), driver("box").states["box"])


def test_an_optional_value_can_be_there_and_be_none(driver: Make) -> None:
    made = driver("maybe", "optionals", "maybes")
    assert not made.states["maybe"].exists()
    made.states["maybe"].update(None)
    made.states["optionals"]["x"] = None
    made.states["maybes"].append(None)
    made.next_epoch()
    assert made.states["maybe"].exists()
    assert made.states["maybe"].get() is None
    assert "x" in made.states["optionals"]
    assert made.states["optionals"].get("x", 5) is None
    assert list(made.states["maybes"]) == [None]
    made.states["maybe"].clear()
    assert not made.states["maybe"].exists()


def test_a_mutable_default_is_a_new_object_each_time(driver: Make) -> None:
    empty = driver("empty").states["empty"]
    empty.get().append(8)
    assert empty.get() == [7]
    assert not empty.exists()


def test_setdefault_hands_out_a_value_that_the_caller_owns(driver: Make) -> None:
    boxes = driver("boxes").states["boxes"]
    boxes.setdefault(("x", True), Box([])).items.append(1)
    assert boxes["x", True] == Box([])


def refuses_negatives(accumulator: list[int], value: int) -> list[int]:
    accumulator.append(value)
    if value < 0:
        raise ValueError("negative")
    return accumulator


def extends_then_returns_text(left: list[int], right: list[int]) -> Any:
    left.extend(right)
    return "text"


@sk.process(key="key")
def breaks(
    row: Row,
    listed: Annotated[
        sk.AggregatingState[int, list[int], int], sk.Aggregate(list[int], refuses_negatives, len)
    ],
    grown: Annotated[sk.ReducingState[list[int]], sk.Reduce(extends_then_returns_text)],
) -> None: ...


@pytest.mark.parametrize(
    ("name", "good", "bad"), [("listed", 1, -1), ("grown", [1], [2])], ids=["aggregate", "reduce"]
)
def test_an_add_that_failed_halfway_is_never_written_even_if_its_error_is_caught(
    name: str, good: Any, bad: Any
) -> None:
    backend = MemoryBackend(["listed", "grown"])
    visit = KeyScope("op", 0, Batch(), lambda: None, b"\x00\x00k", "k")
    states: dict[str, Any] = {spec.name: spec.bind(visit, backend) for spec in breaks.states}
    states[name].add(good)
    with pytest.raises((ValueError, sk.StateTypeError)):
        states[name].add(bad)
    with pytest.raises(sk.StateTypeError, match="half changed"):
        visit.flush()
    assert not len(visit.batch)


def test_clear_then_write_in_one_key_scope_keeps_only_later_writes(driver: Make) -> None:
    made = driver("numbers", "by_number")
    made.states["numbers"].extend([1, 2])
    made.states["by_number"].update({1: "a", 2: "b"})
    made.next_epoch()
    numbers, entries = made.states["numbers"], made.states["by_number"]
    numbers.append(3)
    numbers.clear()
    numbers.append(4)
    entries[3] = "c"
    entries.clear()
    entries[2] = "d"
    del entries[2]
    entries[4] = "e"
    made.next_epoch()
    assert made.states["numbers"].get() == [4]
    assert dict(made.states["by_number"].items()) == {4: "e"}


def test_a_list_keeps_its_order_over_epochs_and_interleaved_visits(driver: Make) -> None:
    made = driver("numbers")
    for number in range(300):
        made.enter(KEYS[number % 2])
        made.states["numbers"].append(number)
        if number % 7 == 0:
            made.next_epoch()
    for parity in (0, 1):
        made.enter(KEYS[parity])
        assert made.states["numbers"].get() == list(range(parity, 300, 2))


def test_repr_of_a_state_shows_its_contents(driver: Make) -> None:
    made = driver("numbers", "by_number")
    made.states["numbers"].extend([1, 2])
    made.states["by_number"][2] = "b"
    assert repr(made.states["numbers"]) == "ListState([1, 2])"
    assert repr(made.states["by_number"]) == "MapState({2: 'b'})"


@pytest.mark.parametrize(
    ("annotation", "keys"),
    [
        (int, [-(2**63), -1, 0, 1, 2**63 - 1]),
        (str, ["", "\x00", "a", "aa", "b", "é", "\U0001f600"]),
        (bytes, [b"", b"\x00", b"\x00\x01", b"\x01", b"\xff"]),
        (bool, [False, True]),
        (dt.date, [dt.date.min, dt.date(2013, 1, 1), dt.date.max]),
        (float, [float("-inf"), -1.5, 0.0, 1.5, float("inf")]),
        (tuple[str, int], [("", 5), ("a", -1), ("a", 3), ("b", 0)]),
        (int | None, [None, -1, 1]),
    ],
    ids=str,
)
def test_map_entries_come_in_the_order_of_the_key_type(annotation: Any, keys: list[Any]) -> None:
    spec = dataclasses.replace(SPECS["by_number"], key_codec=key_codec(annotation))
    backend = MemoryBackend(["by_number"])
    visit = KeyScope("op", 0, Batch(), lambda: None, b"\x00\x00k", "k")
    state: Any = spec.bind(visit, backend)
    for key in reversed(keys):
        state[key] = "x"
    assert list(state) == keys
    visit.flush()
    backend.write(visit.batch)
    assert list(state) == keys


@pytest.mark.parametrize(
    "made",
    [sk.ValueState[int], sk.ListState[int], sk.MapState[str, int], sk.OperatorState[int]],
    ids=lambda kind: kind.__origin__.__name__,
)
def test_a_state_that_is_made_by_hand_says_where_to_declare_it(made: Any) -> None:
    message = r"parameter of a process function.*testing\.states"
    with pytest.raises(sk.StateTypeError, match=message):
        made()
