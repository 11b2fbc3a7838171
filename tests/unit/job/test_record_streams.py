"""Each consumer of a stream gets records of its own, in the form that their type stores."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statekit as sk
from statekit.codec.annotations import is_immutable
from statekit.records.output_type import OutputType
from statekit.records.record_type import RecordType
from statekit.testing import Harness

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
BERLIN = dt.timezone(dt.timedelta(hours=1))


@dataclasses.dataclass
class Changing:
    k: str
    v: int
    parts: list[int]


class Holding(NamedTuple):
    k: str
    v: list[int]


class Model(pydantic.BaseModel):
    k: str
    v: int = 1
    parts: list[int] = []


class Struct(msgspec.Struct):
    k: str
    v: int
    parts: list[int]


class Typed(TypedDict):
    k: str
    v: int
    parts: list[int]


def changed(record: Any) -> Any:
    """The record, changed in every way that its type allows."""
    if isinstance(record, dict):
        record["v"] += 1000
        record["parts"].append(7)
    elif isinstance(record, Holding):
        record.v.append(7)
    else:
        record.v += 1000
        record.parts.append(7)
    return record


MUTABLE: list[tuple[Any, Any]] = [
    (dict, lambda: {"k": "x", "v": 1, "parts": [1]}),
    (Typed, lambda: {"k": "x", "v": 1, "parts": [1]}),
    (Changing, lambda: Changing("x", 1, [1])),
    (Holding, lambda: Holding("x", [1])),
    (Model, lambda: Model(k="x", v=1, parts=[1])),
    (Struct, lambda: Struct("x", 1, [1])),
]


def functions(cls: Any) -> tuple[Any, Any]:
    """A function that changes what it takes and emits it, and one that emits what it takes."""

    def changes(record: cls, n: sk.ValueState[int]) -> Iterator[cls]:
        yield changed(record)

    def passes(record: cls, n: sk.ValueState[int]) -> Iterator[cls]:
        yield record

    return sk.process(key="k")(changes), sk.process(key="k")(passes)


@pytest.mark.parametrize(("cls", "make"), MUTABLE)
def test_operators_and_sinks_of_one_source_see_records_as_they_were_sent(
    cls: Any, make: Any
) -> None:
    changes, passes = functions(cls)
    job = sk.Job("shared")
    source = job.source("in", cls).sink("sent")
    source.process(changes).sink("changed")
    source.process(passes).sink("passed")
    source.process(changes, name="again").sink("again")
    mine = make()
    run = job.run({"in": [mine]})
    assert mine == make(), "the objects of the caller are intact"
    assert run.outputs["sent"] == run.outputs["passed"] == [make()]
    assert run.outputs["changed"] == run.outputs["again"] == [changed(make())]


@pytest.mark.parametrize(("cls", "make"), MUTABLE)
def test_a_sink_beside_an_operator_that_changes_records_gets_them_as_emitted(
    cls: Any, make: Any
) -> None:
    changes, passes = functions(cls)
    job = sk.Job("beside")
    made = job.source("in", cls).process(passes).sink("plain").sink("also")
    made.process(changes).sink("changed")
    seen: list[Any] = []

    def spoil(records: list[Any], epoch: int) -> None:
        seen.extend(map(changed, records))
        records.clear()

    run = job.run({"in": [make()]}, outputs={"also": spoil})
    assert run.outputs["plain"] == [make()]
    assert seen == run.outputs["changed"] == [changed(make())]


@pytest.mark.parametrize(("cls", "make"), MUTABLE)
def test_an_object_that_is_emitted_again_is_emitted_as_it_is_at_that_moment(
    cls: Any, make: Any
) -> None:
    @sk.process(key="k")
    def twice(record: cls, n: sk.ValueState[int]) -> Iterator[cls]:
        yield record
        yield changed(record)
        changed(record)

    assert Harness(twice).send(make()) == [make(), changed(make())]


def test_emitted_objects_are_copied_in_timers_and_ordered_functions() -> None:
    class At(NamedTuple):
        k: str
        at: dt.datetime

    kept: list[Changing] = []

    @sk.process(key="k", event_time="at", ordered=True)
    def follow(record: At, ctx: sk.Context, n: sk.ValueState[int]) -> Iterator[Changing]:
        ctx.timers.set(record.at + dt.timedelta(hours=1))
        kept.append(Changing("x", 1, [1]))
        yield kept[-1]
        yield changed(kept[-1])

    @follow.on_timer
    def late(timer: sk.Timer, n: sk.ValueState[int]) -> Iterator[Changing]:
        made = Changing("t", 1, [1])
        yield made
        yield changed(made)

    job = sk.Job("timers")
    job.source("in", At).process(follow).sink("out")
    run = job.run({"in": [At("x", NOON)]})
    assert run.outputs["out"] == [
        Changing("x", 1, [1]),
        Changing("x", 1001, [1, 7]),
        Changing("t", 1, [1]),
        Changing("t", 1001, [1, 7]),
    ]


def test_a_broadcast_record_that_a_handler_changes_is_the_same_in_all_shards() -> None:
    @sk.process(key="k")
    def uses(record: Holding, rules: sk.BroadcastState[str, int]) -> None: ...

    @uses.on_broadcast
    def learn(rule: dict, rules: sk.BroadcastState[str, int]) -> None:  # type: ignore[type-arg]
        rules[rule["name"]] = rule["value"]
        rule["value"] += 1

    harness, rule = Harness(uses, parallelism=3), {"name": "limit", "value": 5}
    harness.broadcast(rule)
    assert harness.operator_state("rules") == [{"limit": 5}] * 3
    assert rule == {"name": "limit", "value": 5}


def test_late_records_are_emitted_as_they_were_sent() -> None:
    @dataclasses.dataclass
    class Event:
        k: str
        at: dt.datetime

    @sk.process(key="k", event_time="at")
    def shifts(event: Event, n: sk.ValueState[int]) -> Iterator[Event]:
        event.at -= dt.timedelta(days=9)
        yield event

    harness = Harness(shifts)
    harness.send(Event("x", NOON))
    harness.send(Event("x", NOON + dt.timedelta(days=1)), Event("x", NOON - dt.timedelta(days=1)))
    assert harness.late == [Event("x", NOON - dt.timedelta(days=1))]


def test_records_that_cannot_change_are_not_copied() -> None:
    class Plain(NamedTuple):
        k: str
        v: int
        at: dt.datetime

    sent = Plain("x", 1, NOON)
    seen: list[Any] = []

    @sk.process(key="k")
    def looks(record: Plain, n: sk.ValueState[int]) -> Iterator[Plain]:
        seen.append(record)
        yield record

    job = sk.Job("plain")
    job.source("in", Plain).sink("sent").process(looks).sink("out")
    run = job.run({"in": [sent]})
    assert all(found is sent for found in (*seen, *run.outputs["sent"], *run.outputs["out"]))
    assert is_immutable(Plain)
    assert not is_immutable(Holding)


# --- the stored form -----------------------------------------------------------------------------


class Wide(NamedTuple):
    k: str
    amount: float
    at: dt.datetime
    price: decimal.Decimal
    note: float | None
    values: list[float]
    pair: tuple[float, dt.datetime]


WIDE = Wide("x", 3, NOON.astimezone(BERLIN), decimal.Decimal("1.5"), 2**53 + 1, [1], (1, NOON))


def shown(record: Any) -> str:
    """With the types and zones of all values, which `==` does not compare.

    Not with `fold`, which means nothing in UTC.
    """
    return repr(record).replace(", fold=1", "")


@sk.process(key="k")
def emit(record: Wide, n: sk.ValueState[int]) -> Iterator[Wide]:
    yield record


@sk.process(key="k")
def tell(record: Wide, n: sk.ValueState[int]) -> Iterator[str]:
    yield shown(record)


def read_back(cls: Any, records: list[Any]) -> list[Any]:
    """What a reader of the Arrow columns gets, as a task behind a shuffle."""
    batch = OutputType(cls, where="test").to_batch(records)
    return RecordType.of(cls, where="test").reader(batch.schema).read(batch)


def test_a_consumer_sees_the_stored_form_of_inputs_and_outputs() -> None:
    job = sk.Job("stored")
    source = job.source("in", Wide)
    source.process(tell).sink("direct")
    source.process(emit).sink("out").process(tell, name="next").sink("behind")
    run = job.run({"in": [WIDE]})
    (stored,) = map(shown, read_back(Wide, [WIDE]))
    assert "amount=3.0" in stored
    assert (
        run.outputs["direct"]
        == run.outputs["behind"]
        == list(map(shown, run.outputs["out"]))
        == [stored]
    )


def test_outputs_of_a_scalar_or_tuple_type_are_in_their_stored_form() -> None:
    @sk.process(key="k")
    def pairs(record: Wide, n: sk.ValueState[int]) -> Iterator[tuple[str, float | None]]:
        yield "x", 1
        yield "y", None

    @sk.process(key="k")
    def numbers(record: Wide, n: sk.ValueState[int]) -> Iterator[float]:
        yield 1

    assert shown(Harness(pairs).send(WIDE)) == "[('x', 1.0), ('y', None)]"
    assert shown(Harness(numbers).send(WIDE)) == "[1.0]"


LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (float, st.integers(-(2**62), 2**62) | st.floats(allow_nan=False)),
    (int, st.integers(-(2**63), 2**63 - 1)),
    (str, st.text(st.characters(exclude_categories=["Cs"]), max_size=3)),
    (
        dt.datetime,
        st.datetimes(
            dt.datetime(1900, 1, 1),
            dt.datetime(2100, 1, 1),
            timezones=st.sampled_from([dt.UTC, BERLIN]),
        ),
    ),
    (decimal.Decimal, st.decimals(-1000, 1000, places=3)),
    (bool, st.booleans()),
]


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    kinds = ["leaf", "optional", "list", "tuple", "map"] if depth else ["leaf"]
    kind = draw(st.sampled_from(kinds))
    if kind == "leaf":
        leaf: tuple[Any, st.SearchStrategy[Any]] = draw(st.sampled_from(LEAVES))
        return leaf
    inner, values = draw(typed_values(depth - 1))
    if kind == "optional":
        return inner | None, st.none() | values
    if kind == "list":
        return list[inner], st.lists(values, max_size=2)  # type: ignore[valid-type]
    if kind == "map":
        return dict[str, inner], st.dictionaries(  # type: ignore[valid-type]
            st.sampled_from("ab"), values, max_size=2
        )
    other, others = draw(typed_values(depth - 1))
    return tuple[inner, other], st.tuples(values, others)  # type: ignore[valid-type]


def record_class(flavour: str, annotation: Any) -> Any:
    fields = [("k", str), ("v", annotation)]
    if flavour == "namedtuple":
        return NamedTuple("Made", fields)
    if flavour == "struct":
        return msgspec.defstruct("Made", fields)
    return dataclasses.make_dataclass("Made", fields, frozen=flavour == "frozen")


@given(st.data(), typed_values(), st.sampled_from(["namedtuple", "dataclass", "frozen", "struct"]))
def test_outputs_of_generated_types_equal_those_after_a_shuffle(
    data: st.DataObject, typed: tuple[Any, st.SearchStrategy[Any]], flavour: str
) -> None:
    annotation, values = typed
    cls = record_class(flavour, annotation)
    records = [cls("x", data.draw(values)) for _ in range(2)]
    outputs = OutputType(cls, where="test")
    expected = list(map(shown, read_back(cls, records)))
    stored = outputs.stored(records)
    assert list(map(shown, stored)) == expected
    assert list(map(shown, outputs.stored(stored))) == expected, "it is its own stored form"


def test_classes_that_change_fields_do_not_change_them_between_operators() -> None:
    @dataclasses.dataclass
    class Grows:
        k: str
        v: float

        def __post_init__(self) -> None:
            self.v += 1

    @sk.process(key="k")
    def makes(record: Wide, n: sk.ValueState[int]) -> Iterator[Grows]:
        yield Grows("x", 1)

    @sk.process(key="k")
    def reads(record: Grows, n: sk.ValueState[int]) -> Iterator[float]:
        yield record.v

    job = sk.Job("grows")
    made = job.source("in", Wide).process(makes).sink("emitted")
    made.process(reads).sink("read")
    run = job.run({"in": [WIDE]})
    assert [(type(found.v), found.v) for found in run.outputs["emitted"]] == [(float, 2.0)]
    assert run.outputs["read"] == [2.0]
