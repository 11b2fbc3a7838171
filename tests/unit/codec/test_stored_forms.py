"""What a type accepts is stored and read back, also by a reader without the classes.

And a state reads the same before and after it is stored.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import typing
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Optional

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.codec.schema import Schema, schema_of
from statekit.codec.schema_codec import json_value_decoder
from statekit.codec.value_check import NESTING_MAX
from statekit.codec.value_codec import value_codec
from statekit.errors import StateTypeError
from statekit.query.tables.columns import Decoder, value_column
from statekit.testing import Harness
from tests.support.generated_types import shape, typed_values

INDIA = dt.timezone(dt.timedelta(hours=5, minutes=30))
NOON = dt.datetime(2026, 1, 1, 17, 30, tzinfo=INDIA)


@settings(max_examples=600, deadline=None)
@given(typed_values())
def test_accepted_values_are_read_back_by_the_codec_and_by_a_reader_without_classes(
    pair: tuple[Any, Any],
) -> None:
    annotation, value = pair
    try:
        codec = value_codec(annotation)
    except StateTypeError:
        return  # such as a union of two members that have one name
    if not codec.accepts(value):
        assert not codec.exact(value)
        assert "accepted" not in codec.reason(value)
        return
    data = codec.encode(value)
    stored = codec.decode(data)
    assert codec.exact(stored), codec.reason(stored)
    assert shape(codec.decode(codec.encode(stored))) == shape(stored)
    if codec.exact(value):
        assert shape(stored) == shape(value)
    schema = Schema.from_json(schema_of(annotation).to_json())
    json_value_decoder(schema)(data)
    column_of(schema, data)


def column_of(schema: Schema, data: bytes) -> pa.Array:
    """The typed column of a savepoint that holds one value."""
    for wide in (False, True):  # as a savepoint does it
        column = value_column(schema, wide=wide)
        try:
            return column.array(Decoder(column.wire, schema.brief)([data]))
        except OverflowError:
            if wide:
                raise
    raise AssertionError("unreachable")


class Leg(NamedTuple):
    origin: str
    minutes: float = 0.0


@pytest.mark.parametrize(
    ("annotation", "value", "shown"),
    [
        (Literal["r", None] | Leg, None, None),
        (Literal["r", None] | Leg, "r", "r"),
        (Literal["r", None] | set[int], None, None),
        (list[Literal["r", None] | Leg], [None, Leg("a")], [None, {"origin": "a", "minutes": 0}]),
        (Leg | Literal[1, None], None, None),
        (str | Literal["x", None], None, None),
    ],
    ids=str,
)
def test_none_of_a_literal_in_a_union_is_read_back(annotation: Any, value: Any, shown: Any) -> None:
    codec = value_codec(annotation)
    assert codec.accepts(value)
    assert codec.decode(codec.encode(value)) == value
    assert json_value_decoder(schema_of(annotation))(codec.encode(value)) == shown


def test_a_member_of_a_union_that_keeps_a_value_comes_before_one_that_converts_it() -> None:
    codec = value_codec(tuple[float, float] | tuple[int, int])
    assert shape(codec.decode(codec.encode((1, 2)))) == shape((1, 2))
    assert shape(codec.decode(codec.encode((1.0, 2)))) == shape((1.0, 2.0))


# ------------------------------------------------------------------ enums and literals


def test_members_of_enums_and_literals_beyond_64_bits_are_refused_where_they_are_declared() -> None:
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(StateTypeError, match="does not fit 64 bits"):
            value_codec(enum.IntEnum("Big", {"A": value}) | int)
        with pytest.raises(StateTypeError, match="does not fit 64 bits"):
            value_codec(typing.Literal[value])
    with pytest.raises(StateTypeError, match="not valid UTF-8"):
        value_codec(enum.Enum("Odd", {"A": "\ud800"}))


# ------------------------------------------------------------------ nesting


class Named(NamedTuple):
    n: int
    next: Optional[Named] = None  # noqa: UP045  a forward reference has no `|`


@dataclasses.dataclass
class Plain:
    n: int
    next: Optional[Plain] = None  # noqa: UP045


@dataclasses.dataclass
class Tree:
    n: int
    tags: set[int] = dataclasses.field(default_factory=set)
    kids: list[Tree] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Either:
    n: int
    next: int | list[Either] | Either | dict[str, Either] | None = None


class Record(msgspec.Struct):
    n: int
    next: Record | None = None


class Model(pydantic.BaseModel):
    n: int
    next: Optional[Model] = None  # noqa: UP045


def chain(levels: int, link: Callable[[Any], Any]) -> Any:
    value = None
    for _ in range(levels):
        value = link(value)
    return value


LINKS: list[tuple[Any, int, Callable[[Any], Any]]] = [
    (Named, 1, lambda inner: Named(1, inner)),
    (Plain, 1, lambda inner: Plain(1, inner)),
    (Tree, 2, lambda inner: Tree(1, {1}, [inner] if inner else [])),
    (Either, 2, lambda inner: Either(1, inner)),
    (Record, 1, lambda inner: Record(1, inner)),
    (Model, 1, lambda inner: Model.model_construct(n=1, next=inner)),
]
each_link = pytest.mark.parametrize(
    ("annotation", "step", "link"), LINKS, ids=[cls.__name__ for cls, _, _ in LINKS]
)


@each_link
def test_a_value_of_the_most_levels_allowed_is_stored_and_read(
    annotation: Any, step: int, link: Callable[[Any], Any]
) -> None:
    codec, show = value_codec(annotation), json_value_decoder(schema_of(annotation))
    for levels in range(1, NESTING_MAX // step + 1):
        value = chain(levels, link)
        assert codec.accepts(value)
        data = codec.encode(value)
        assert codec.encode(codec.decode(data)) == data
        show(data)


@each_link
@pytest.mark.parametrize("levels", [NESTING_MAX + 2, 400, 5_000])
def test_a_value_of_more_levels_is_refused_with_the_limit(
    annotation: Any, step: int, link: Callable[[Any], Any], levels: int
) -> None:
    codec, value = value_codec(annotation), chain(levels, link)
    assert not codec.accepts(value)
    assert not codec.exact(value)
    assert f"more than {NESTING_MAX} levels deep" in codec.reason(value)


def test_a_value_that_is_nested_too_deep_is_refused_at_the_update() -> None:
    class Event(NamedTuple):
        k: str

    @sk.process(key="k")
    def keep(event: Event, last: sk.ValueState[Named]) -> Iterator[str]:
        with pytest.raises(StateTypeError, match="levels deep"):
            last.update(chain(2_000, lambda inner: Named(1, inner)))
        yield "refused"

    assert Harness(keep).send(Event("a")) == ["refused"]


# ------------------------------------------------------------------ classes that run code


@dataclasses.dataclass(frozen=True)
class Growing:
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", self.n + 1)


@dataclasses.dataclass
class Parsed:
    day: dt.date

    def __post_init__(self) -> None:
        self.day = dt.date.fromisoformat(typing.cast("str", self.day))


@dataclasses.dataclass(frozen=True)
class Checked:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("negative")
        object.__setattr__(self, "double", 2 * self.n)


class Counted(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        self.n += 1


class Raised(pydantic.BaseModel):
    n: int

    def model_post_init(self, _context: Any) -> None:
        self.n += 1


@pytest.mark.parametrize("cls", [Growing, Counted, Raised])
@pytest.mark.parametrize("inside", [False, True])
def test_a_value_is_read_as_it_was_written_whatever_its_class_does(cls: Any, inside: bool) -> None:
    codec = value_codec(dict[str, tuple[cls, ...]] if inside else cls)
    value = {"a": (cls(n=1),)} if inside else cls(n=1)
    assert codec.decode(codec.encode(value)) == value


def test_a_class_that_cannot_be_read_back_is_refused() -> None:
    value = Parsed(typing.cast("dt.date", "2026-01-01"))
    with pytest.raises(StateTypeError, match=r"cannot be read back: .*must be str"):
        value_codec(Parsed).encode(value)


def test_a_class_that_only_checks_and_derives_is_stored() -> None:
    codec = value_codec(Checked)
    assert codec.decode(codec.encode(Checked(2))).double == 4


# ------------------------------------------------------------------ states


class Event(NamedTuple):
    k: str
    value: Any = None


def reads_of(annotation: Any, value: Any) -> tuple[list[Any], list[Any]]:
    """What states read of a value in the epoch that writes it, and in the next one."""

    def last(_one: Any, other: Any) -> Any:
        return other

    aggregate: Any = sk.Aggregate(lambda: value, last, lambda held: held)

    def read(
        event: dict[str, Any],
        single: Any,
        listed: Any,
        mapped: Any,
        reduced: Any,
        aggregated: Any,
        local: Any,
    ) -> None:
        if event["write"]:
            single.update(value)
            listed.append(value)
            mapped["set"] = value
            seen.append(mapped.setdefault("default", value))
            reduced.add(value)
            reduced.add(value)
            aggregated.add(value)
            local.update(value)
        else:
            seen.append(mapped.setdefault("default", value))
        seen.extend([single.get(), *listed, *mapped.values(), mapped["set"]])
        seen.extend([reduced.get(), aggregated.get(), local.get()])

    read.__annotations__ = {
        "event": dict,
        "single": sk.ValueState[annotation],
        "listed": sk.ListState[annotation],
        "mapped": sk.MapState[str, annotation],
        "reduced": Annotated[sk.ReducingState[annotation], sk.Reduce(last)],
        "aggregated": Annotated[sk.AggregatingState[annotation, annotation, annotation], aggregate],
        "local": sk.OperatorState[annotation],
        "return": None,
    }
    seen: list[Any] = []
    harness = Harness(sk.process(key="k")(read))
    harness.send({"k": "a", "write": True})
    first, seen = seen, []
    harness.send({"k": "a", "write": False})
    return first, seen


@settings(max_examples=100, deadline=None)
@given(typed_values().filter(lambda pair: pair[1] is not None))
def test_states_read_the_same_in_the_epoch_that_writes_and_in_the_next(
    pair: tuple[Any, Any],
) -> None:
    annotation, value = pair
    try:
        codec = value_codec(annotation)
    except StateTypeError:
        return
    if not codec.accepts(value):
        return
    now, then = reads_of(annotation, value)
    stored = shape(codec.decode(codec.encode(value)))
    assert list(map(shape, now)) == [stored] * len(now)
    assert list(map(shape, then)) == [stored] * len(then)


class Fare(NamedTuple):
    at: dt.datetime
    cents: float


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (float, 3, 3.0),
        (float, 2**53 + 1, float(2**53)),
        (dt.datetime, NOON, NOON.astimezone(dt.UTC)),
        (tuple[float, ...], (1, 2.5), (1.0, 2.5)),
        (Fare, Fare(NOON, 1), Fare(NOON.astimezone(dt.UTC), 1.0)),
        (Fare | str, Fare(NOON, 1), Fare(NOON.astimezone(dt.UTC), 1.0)),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Decimal, Decimal("1.50"), Decimal("1.50")),
    ],
    ids=str,
)
def test_a_value_is_read_as_it_is_stored_from_the_first_read_on(
    annotation: Any, value: Any, stored: Any
) -> None:
    now, then = reads_of(annotation, value)
    assert list(map(shape, now + then)) == [shape(stored)] * len(now + then)


def test_reducers_and_aggregates_receive_stored_values() -> None:
    """A sum over an int beyond 2**53 in a float is the same however epochs cut it."""
    given_to: list[Any] = []

    def add(one: float, other: float) -> float:
        given_to.append(one)
        return one + other

    @sk.process(key="k")
    def total(
        event: Event, held: Annotated[sk.ReducingState[float], sk.Reduce(add)]
    ) -> Iterator[float]:
        held.add(event.value)
        yield held.get() or 0.0

    events = [Event("a", 2**53 + 1), Event("a", 1), Event("a", 1)]
    together = Harness(total).send(*events)
    apart = Harness(total)
    assert together == [result for event in events for result in apart.send(event)]
    assert {type(value) for value in given_to} == {float}


def test_a_default_is_read_as_it_would_be_stored() -> None:
    @sk.process(key="k")
    def read(event: Event, held: Annotated[sk.ValueState[float], sk.Default(1)]) -> Iterator[str]:
        yield repr(held.get())

    assert Harness(read).send(Event("a")) == ["1.0"]


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, 2**64, "must fit 64 bits"),
        (int, -(2**63) - 1, "must fit 64 bits"),
        (float, 10**400, "must fit 64 bits"),
        (str, "a\ud800", "valid UTF-8"),
        (tuple[int, str], (2**70, ""), "must fit 64 bits"),
        (Leg, Leg("\udfff"), "valid UTF-8"),
        (int | str, 2**64, "expected int | str"),
        (Optional[str], "\ud800", "valid UTF-8"),  # noqa: UP045
        (frozenset[str], frozenset({"\ud800"}), "valid UTF-8"),
        (Parsed, Parsed(typing.cast("dt.date", "2026-01-01")), "cannot be read back"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["value", "map", "list", "reducing", "aggregating", "operator"])
def test_a_value_that_cannot_be_stored_is_refused_at_the_update(
    annotation: Any, value: Any, said: str, kind: str
) -> None:
    writes: dict[str, tuple[Any, Callable[[Any], None]]] = {
        "value": (sk.ValueState[annotation], lambda held: held.update(value)),
        "map": (sk.MapState[str, annotation], lambda held: held.update(a=value)),
        "list": (sk.ListState[annotation], lambda held: held.append(value)),
        "reducing": (
            Annotated[sk.ReducingState[annotation], sk.Reduce(lambda one, _other: one)],
            lambda held: held.add(value),
        ),
        "aggregating": (
            Annotated[
                sk.AggregatingState[int, annotation, int],
                sk.Aggregate(lambda: value, lambda held, _one: held, lambda _held: 0),
            ],
            lambda held: held.add(1),
        ),
        "operator": (sk.OperatorState[annotation], lambda held: held.update(value)),
    }
    declared, write = writes[kind]

    def keep(event: Event, held: Any) -> Iterator[str]:
        with pytest.raises(StateTypeError, match=said):
            write(held)
        yield "refused"

    keep.__annotations__ = {"event": Event, "held": declared, "return": Iterator[str]}
    assert Harness(sk.process(key="k")(keep)).send(Event("a")) == ["refused"]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.one_of(st.integers(-(2**60), 2**60), st.floats(-1e9, 1e9)), max_size=8), st.data()
)
def test_a_running_mean_does_not_depend_on_where_epochs_cut_its_input(
    values: list[float], data: st.DataObject
) -> None:
    @sk.process(key="k")
    def mean(event: Event, seen: sk.ValueState[tuple[int, float]]) -> Iterator[str]:
        count, total = seen.get() or (0, 0)
        seen.update((count + 1, total + event.value))
        yield repr(seen.get())

    whole = Harness(mean).send(*[Event("a", value) for value in values])
    cut, parts = Harness(mean), []
    for value in values:
        if data.draw(st.booleans()):
            cut.send()
        parts += cut.send(Event("a", value))
    assert parts == whole
