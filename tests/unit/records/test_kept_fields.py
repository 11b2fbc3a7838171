"""Whatever a record holds is kept on all ways that it goes, or it is refused."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterator
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict, cast

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statekit as sk
from statekit.codec.key_codec import key_codec
from statekit.codec.value_codec import value_codec
from statekit.records.output_type import OutputType
from statekit.records.record_type import RecordType
from statekit.testing import Harness
from tests.support.record_kinds import (
    AT,
    CONTAINERS,
    HOLD_MORE,
    KINDS,
    Aliased,
    Deriving,
    Filled,
    Keys,
    Longer,
    MoreTuple,
    OnTheWire,
    Plain,
    PydanticDataclass,
    Validating,
    content,
    made,
    with_more,
)


class Go(NamedTuple):
    """A record that makes a function write, or read."""

    user: str = "ann"
    writes: bool = True
    at: dt.datetime = AT


def each_of(classes: Any) -> pytest.MarkDecorator:
    """Runs a test with each of some classes."""
    return pytest.mark.parametrize("cls", classes, ids=lambda cls: cls.__name__)


def process(annotations: dict[str, Any], fn: Any, **options: Any) -> Any:
    """A process function with these annotations, which are computed."""
    fn.__annotations__ = annotations
    return sk.process(key="user", **options)(fn)


# ------------------------------------------------------------------ states


typed: Any = sk  # mypy knows no classes that are computed
STATES: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], None], Callable[[Any], Any]]] = {
    "value": (
        lambda cls: typed.ValueState[cls],
        lambda held, value: held.update(value),
        lambda held: held.get(),
    ),
    "list": (
        lambda cls: typed.ListState[cls],
        lambda held, value: held.append(value),
        lambda held: held[0],
    ),
    "map": (
        lambda cls: typed.MapState[str, cls],
        lambda held, value: held.update(a=value),
        lambda held: held["a"],
    ),
    "reducing": (
        lambda cls: Annotated[typed.ReducingState[cls], typed.Reduce(lambda _one, other: other)],
        lambda held, value: held.add(value),
        lambda held: held.get(),
    ),
    "aggregating": (
        lambda cls: Annotated[
            typed.AggregatingState[cls, GenericAlias(list, (cls,)), cls],
            typed.Aggregate(list, lambda held, one: [*held, one], lambda held: held[-1]),
        ],
        lambda held, value: held.add(value),
        lambda held: held.get(),
    ),
    "operator": (
        lambda cls: typed.OperatorState[cls],
        lambda held, value: held.update(value),
        lambda held: held.get(),
    ),
    "operator list": (
        lambda cls: typed.OperatorListState[cls],
        lambda held, value: held.append(value),
        lambda held: held[0],
    ),
}


@each_of(KINDS)
def test_each_state_keeps_all_that_a_record_holds(cls: Any) -> None:
    seen: list[tuple[str, Any]] = []

    def keep(event: Any, *held: Any) -> None:
        for state, (name, (_, write, read)) in zip(held, STATES.items(), strict=True):
            if event.writes:
                write(state, made(cls))
            seen.append((name, content(read(state))))

    names = [f"state_{number}" for number in range(len(STATES))]
    source = f"def keep_all(event, {', '.join(names)}): keep(event, {', '.join(names)})"
    scope: dict[str, Any] = {"keep": keep}
    exec(source, scope)
    types = {
        name: declare(cls) for name, (declare, _, _) in zip(names, STATES.values(), strict=True)
    }
    harness = Harness(process({"event": Go, **types, "return": None}, scope["keep_all"]))
    harness.send(Go())
    harness.send(Go(writes=False))
    assert seen == [(name, content(made(cls))) for name in STATES] * 2


@each_of(KINDS)
def test_a_value_keeps_all_that_a_record_in_it_holds(cls: Any) -> None:
    for annotation, put, get in CONTAINERS.values():
        codec = value_codec(annotation(cls))
        value = put(made(cls))
        assert codec.accepts(value), codec.reason(value)
        row = codec.encode(value)
        assert codec.decode_all is not None
        for found in (codec.decode(row), *codec.decode_all([row, row])):
            assert content(get(found)) == content(made(cls))


@each_of(KINDS)
def test_broadcast_state_keeps_all_that_a_record_holds(cls: Any) -> None:
    seen: list[Any] = []

    def keep(event: Any, held: Any) -> None:
        seen.append(content(held["a"]))

    def put(event: Any, held: Any) -> None:
        held["a"] = event

    declared = process({"event": Go, "held": typed.BroadcastState[str, cls], "return": None}, keep)
    put.__annotations__ = {"event": cls, "held": typed.BroadcastState[str, cls], "return": None}
    declared.on_broadcast(put)
    harness = Harness(declared)
    harness.broadcast(made(cls))
    harness.send(Go())
    assert seen == [content(made(cls))]


# ------------------------------------------------------------------ between operators


def emitting(emitted: Any, value: Callable[[], Any]) -> Any:
    def emit(event: Any, times: Any) -> Iterator[Any]:
        yield value()

    return process({"event": Go, "times": sk.ValueState[int], "return": Iterator[emitted]}, emit)


def reading(taken: Any, **options: Any) -> Any:
    def read(event: Any, times: Any) -> Iterator[Any]:
        yield event

    declared = {"event": taken, "times": sk.ValueState[int], "return": Iterator[taken]}
    return process(declared, read, **options)


WAYS: dict[str, Callable[[Any, Any, str], Any]] = {
    "sink": lambda stream, cls, name: stream,
    "operator": lambda stream, cls, name: stream.process(reading(cls), name=name),
    "ordered": lambda stream, cls, name: stream.process(
        reading(cls, event_time="at", lateness="1 hour", ordered=True), name=name
    ),
    "filter": lambda stream, cls, name: stream.filter(
        lambda one: content(one)["score"] == 5, name=name
    ),
    "map": lambda stream, cls, name: stream.map(lambda one: one, into=cls, name=name),
    "flat_map": lambda stream, cls, name: stream.flat_map(lambda one: [one], into=cls, name=name),
    "map, operator": lambda stream, cls, name: stream.map(
        lambda one: one, into=cls, name=f"{name}_before"
    ).process(reading(cls), name=name),
}


@each_of(KINDS)
def test_a_stream_keeps_all_that_a_record_holds_on_each_way(cls: Any) -> None:
    job = sk.Job("kept")
    emitted = job.source("go", Go).process(emitting(cls, lambda: made(cls)), name="emit")
    for number, way in enumerate(WAYS.values()):
        way(emitted, cls, f"way_{number}").sink(f"way_{number}")
    run = job.run({"go": [Go()]})
    for number, name in enumerate(WAYS):
        assert (name, *map(content, run.outputs[f"way_{number}"])) == (name, content(made(cls)))


@each_of(KINDS)
def test_an_aggregate_of_records_keeps_all_that_they_hold(cls: Any) -> None:
    job = sk.Job("kept")
    emitted = job.source("go", Go).process(emitting(cls, lambda: made(cls)), name="emit")
    emitted.aggregate(
        key="user",
        name="last",
        one=sk.Last(by="score"),
        top=sk.Top(1, by="score"),
        all=sk.Collect(),
    ).sink("out")
    runs = job.run({"go": [Go()]}), job.run({"go": [Go()] * 3}, epoch_size=1)
    for found in (run.outputs["out"] for run in runs):
        held = found[-1].one, found[-1].top[0], found[-1].all[-1]
        assert list(map(content, held)) == [content(made(cls))] * 3


@each_of(KINDS)
def test_a_window_that_collects_records_keeps_all_that_they_hold(cls: Any) -> None:
    job = sk.Job("kept")
    emitted = job.source("go", Go).process(emitting(cls, lambda: made(cls)), name="emit")
    windows = sk.tumbling("1 hour")
    emitted.window(windows, key="user", event_time="at").collect().sink("out")
    (found,) = job.run({"go": [Go()]}).outputs["out"]
    assert list(map(content, found.records)) == [content(made(cls))]


@each_of(KINDS)
def test_columns_keep_all_that_a_record_holds(cls: Any) -> None:
    for annotation, put, get in CONTAINERS.values():
        outer: Any = dataclasses.make_dataclass("Outer", [("held", annotation(cls))])
        form = OutputType(outer, where="test")
        batch = form.to_batch([outer(put(made(cls)))])
        record_type = RecordType.of(outer, where="test")
        (found,) = record_type.reader(batch.schema, restores=True).read(batch)
        (stored,) = form.stored([outer(put(made(cls)))])
        copied = (form.copy or copy.copy)(outer(put(made(cls))))
        for one in (found, stored, copied):
            assert content(get(one.held)) == content(made(cls))


def test_a_key_field_that_the_constructor_does_not_take_is_the_key_of_the_record() -> None:
    @sk.process(key="score")
    def by_score(event: Plain, times: sk.ValueState[int], ctx: sk.Context[int]) -> Iterator[int]:
        yield ctx.key

    job = sk.Job("kept")
    emitted = job.source("go", Go).process(emitting(Plain, lambda: made(Plain)), name="emit")
    emitted.process(by_score).sink("keys")
    assert job.run({"go": [Go()]}).outputs["keys"] == [5]


def test_a_tuple_that_changes_its_fields_is_the_map_key_that_it_was() -> None:
    codec = key_codec(tuple[str, OwnPair])
    key = ("a", tuple.__new__(OwnPair, (1, 2)))
    assert codec.decode(codec.encode(key))[0] == key


class Pair(NamedTuple):
    one: int
    two: int


class OwnPair(Pair):
    def __new__(cls, one: int, two: int) -> OwnPair:
        return super().__new__(cls, one + 1, two)


class LoosePair(Pair):
    more: str


# ------------------------------------------------------------------ sources


@each_of(KINDS)
def test_records_that_a_caller_passes_keep_all_that_they_hold(cls: Any) -> None:
    job = sk.Job("kept")
    job.source("in", cls).process(reading(cls)).sink("out")
    (found,) = job.run({"in": [made(cls)]}).outputs["out"]
    assert content(found) == content(made(cls))


@each_of([Plain, Filled, PydanticDataclass])
def test_a_row_of_a_source_may_have_a_field_that_the_constructor_does_not_take(cls: Any) -> None:
    row = {"user": "ann", "at": AT, "score": 5}
    records = RecordType.of(cls, where="test")
    assert records.coerce(row).score == 5
    without = {"user": "ann", "at": AT}
    assert records.coerce(without).score == cls("ann", AT).score
    batch = pa.RecordBatch.from_pylist([row])
    assert records.reader(batch.schema).read(batch)[0].score == 5
    outer: Any = dataclasses.make_dataclass("Outer", [("held", list[cls])])
    of_outer = RecordType.of(outer, where="test")
    nested = pa.RecordBatch.from_pylist([{"held": [row]}])
    assert of_outer.reader(nested.schema).read(nested)[0].held[0].score == 5
    assert of_outer.coerce({"held": [row]}).held[0].score == 5


@pytest.mark.parametrize(
    ("cls", "row", "field", "value"),
    [
        (OnTheWire, {"first_tag": "a"}, "first_tag", "a"),
        (OnTheWire, {"firstTag": "a"}, "first_tag", "a"),
        (Aliased, {"Score": 5}, "score", 5),
        (Aliased, {"score": 5}, "score", 5),
        (Aliased, {"two": 5}, "other", 5),
        (Aliased, {"other": 5}, "other", 5),
        (Keys, {"score": 5}, "score", 5),
    ],
)
def test_a_mapping_has_the_names_of_fields_or_those_that_the_class_gives_them(
    cls: Any, row: dict[str, Any], field: str, value: Any
) -> None:
    found = RecordType.of(cls, where="test").coerce({"user": "ann", "at": AT, **row})
    assert (found[field] if cls is Keys else getattr(found, field)) == value


def test_columns_of_a_source_have_the_names_of_fields() -> None:
    batch = pa.RecordBatch.from_pylist([{"user": "ann", "at": AT, "score": 5, "other": 6}])
    (found,) = RecordType.of(Aliased, where="test").reader(batch.schema).read(batch)
    assert (found.score, found.other) == (5, 6)


def test_a_mapping_of_another_tag_or_with_forbidden_keys_is_refused() -> None:
    records = RecordType.of(OnTheWire, where="test")
    with pytest.raises(sk.ProcessError, match="its 'type' is not 'wire'"):
        records.coerce({"type": "other", "user": "ann", "at": AT})
    strict = msgspec.defstruct("Strict", [("user", str)], forbid_unknown_fields=True)
    renamed = msgspec.defstruct(
        "Renamed", [("user", str)], forbid_unknown_fields=True, rename={"user": "name"}
    )
    with pytest.raises(sk.ProcessError, match="unknown keys 'page'"):
        RecordType.of(renamed, where="test").coerce({"name": "ann", "page": 1})
    with pytest.raises(sk.ProcessError, match="unknown field `page`"):
        RecordType.of(strict, where="test").coerce({"user": "ann", "page": 1})


def test_the_constructor_makes_records_of_a_source_once() -> None:
    job = sk.Job("kept")
    read = job.source("in", Validating).process(reading(Validating), name="one")
    read.process(reading(Validating), name="two").sink("out")
    (found,) = job.run({"in": [{"user": "ann", "at": AT, "score": 5}]}).outputs["out"]
    assert (found.user, found.score) == ("ann!", 6)


# ------------------------------------------------------------------ what is refused


@each_of(HOLD_MORE)
def test_a_state_refuses_a_record_that_holds_more_than_its_fields(cls: Any) -> None:
    said = f"it has 'more' beside the fields of {cls.__name__}, and rows keep fields only: declare"
    for annotation, put, _ in CONTAINERS.values():
        codec = value_codec(annotation(cls))
        assert not codec.accepts(put(with_more(cls)))
        assert said in codec.reason(put(with_more(cls)))


@each_of(HOLD_MORE)
def test_a_stream_refuses_a_record_that_holds_more_than_its_fields(cls: Any) -> None:
    for annotation, put, _ in CONTAINERS.values():
        outer: Any = dataclasses.make_dataclass("Outer", [("held", annotation(cls))])
        form = OutputType(outer, where="test")
        emitted = (form.copy or copy.copy)(outer(put(with_more(cls))))
        for write in (form.stored, form.to_batch):
            with pytest.raises(sk.ProcessError, match="it has 'more' beside the fields of"):
                write([emitted])


@each_of(HOLD_MORE)
def test_a_source_refuses_a_record_that_holds_more_than_its_fields(cls: Any) -> None:
    job = sk.Job("kept")
    job.source("in", cls).process(reading(cls)).sink("out")
    with pytest.raises(sk.ProcessError, match="it has 'more' beside the fields of"):
        job.run({"in": [with_more(cls)]})


def test_a_subclass_with_more_fields_is_refused_where_its_base_is_declared() -> None:
    job = sk.Job("kept")
    job.source("go", Go).process(emitting(Plain, lambda: Longer("ann", AT, "kept?"))).sink("out")
    with pytest.raises(sk.ProcessError, match="it has 'more' beside the fields of Plain"):
        job.run({"go": [Go()]})


def test_a_key_that_holds_more_than_its_fields_is_refused() -> None:
    key = LoosePair(1, 2)
    codec = key_codec(LoosePair)
    assert codec.decode(codec.encode(key))[0] == key
    key.more = "kept?"
    with pytest.raises(sk.StateTypeError, match="it has 'more' beside the fields of LoosePair"):
        codec.encode(key)
    with pytest.raises(AttributeError):
        MoreTuple("ann", AT).more  # noqa: B018  an annotation alone sets nothing


class Private(pydantic.BaseModel):
    user: str
    _dirty: bool = pydantic.PrivateAttr(default=False)


class Open(pydantic.BaseModel, extra="allow"):
    user: str


@pydantic.dataclasses.dataclass(config={"extra": "allow"})
class OpenDataclass:
    user: str


@dataclasses.dataclass
class OnlyInit:
    user: str
    given: dataclasses.InitVar[int] = 0


@dataclasses.dataclass
class Failure(Exception):
    user: str


@dataclasses.dataclass
class Tags(dict[str, str]):
    user: str


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Private, "has the private attributes _dirty, which no row keeps: make them fields"),
        (Open, "allows extra fields"),
        (OpenDataclass, "allows extra fields"),
        (OnlyInit, "OnlyInit.given is an InitVar"),
        (Failure, "Failure is a Exception too, and no row keeps that part"),
        (Tags, "Tags is a dict too"),
    ],
)
def test_a_class_that_always_holds_more_than_its_fields_is_refused(cls: Any, said: str) -> None:
    outer: Any = dataclasses.make_dataclass("Outer", [("held", list[cls])])
    for annotation in (cls, outer):
        with pytest.raises(sk.StateTypeError, match=said):
            value_codec(annotation)
        with pytest.raises(sk.StateTypeError, match=said):
            emitting(annotation, lambda: None)
    with pytest.raises(sk.StateTypeError, match=said):
        reading(cls)


def test_an_attribute_that_post_init_would_make_in_another_way_is_refused() -> None:
    deriving = made(Deriving)
    codec = value_codec(Deriving)
    assert codec.decode(codec.encode(deriving)).loud == "ANN"
    deriving.loud = "BOB"
    assert "it has 'loud' beside the fields of Deriving" in codec.reason(deriving)
    with pytest.raises(sk.ProcessError, match="it has 'loud' beside the fields of Deriving"):
        OutputType(Deriving, where="test").stored([deriving])


class Given(pydantic.BaseModel, frozen=True):
    user: str
    note: str | None = None


class Partial(TypedDict):
    user: str
    note: NotRequired[str]


class Unclear(TypedDict):
    user: str
    note: NotRequired[str | None]


def test_all_fields_of_a_model_count_as_set_once_a_state_or_a_stream_has_it() -> None:
    codec = value_codec(Given)
    job = sk.Job("kept")
    read = job.source("in", Given).process(reading(Given), name="one").sink("one")
    read.process(reading(Given), name="two").sink("two")
    run = job.run({"in": [Given(user="ann")]})
    batch = OutputType(Given, where="test").to_batch([Given(user="ann")])
    reader = RecordType.of(Given, where="test").reader(batch.schema, restores=True)
    decoded = codec.decode(codec.encode(Given(user="ann")))
    for found in (*run.outputs["one"], *run.outputs["two"], *reader.read(batch), decoded):
        assert found == Given(user="ann")
        assert found.model_fields_set == {"user", "note"}


class Inner(pydantic.BaseModel, frozen=True):
    one: int = 1
    two: int = 2


SHARED = Inner()


class Outer(pydantic.BaseModel):
    user: str
    note: str | None = None
    inner: Inner = SHARED
    some: list[Inner] = pydantic.Field(default_factory=lambda: [Inner(one=3)])
    either: Inner | str = "none"
    by_name: dict[str, Inner] = pydantic.Field(default_factory=dict)


@dataclasses.dataclass
class Around:
    user: str
    inner: Inner = dataclasses.field(default_factory=Inner)


class AroundTuple(NamedTuple):
    user: str
    inner: tuple[Inner, ...] = (SHARED,)


def sets_of(value: Any) -> Any:
    """Return which fields of the models in a value are set."""
    if isinstance(value, pydantic.BaseModel):
        return sorted(value.model_fields_set), list(map(sets_of, dict(value).values()))
    if isinstance(value, dict):
        return list(map(sets_of, value.values()))
    if isinstance(value, list | tuple):
        return list(map(sets_of, value))
    return sets_of(list(vars(value).values())) if isinstance(value, Around) else None


@pytest.mark.parametrize("cls", [Given, Outer, Around, AroundTuple])
def test_rows_of_a_frame_without_some_columns_are_as_mappings_without_these_fields(
    cls: Any,
) -> None:
    row: dict[str, Any] = {"user": "ann"}
    if cls is Outer:
        row |= {"either": {"one": 5}, "by_name": {"a": {"two": 5}}}
    columns = pa.RecordBatch.from_pylist([row], schema=_schema_of(row))
    (of_frame,) = RecordType.of(cls, where="test").reader(columns.schema).read(columns)
    coerced = RecordType.of(cls, where="test").coerce(row)
    (of_mapping,) = OutputType(cls, where="test").stored([coerced])
    codec = value_codec(cls)
    assert of_frame == of_mapping
    assert sets_of(of_frame) == sets_of(of_mapping)
    assert sets_of(of_frame) == sets_of(codec.decode(codec.encode(of_frame)))
    assert not SHARED.model_fields_set


def _schema_of(row: dict[str, Any]) -> pa.Schema:
    types = {
        "user": pa.string(),
        "either": pa.struct({"one": pa.int64()}),
        "by_name": pa.map_(pa.string(), pa.struct({"two": pa.int64()})),
    }
    return pa.schema({name: types[name] for name in row})


def test_a_typed_dict_keeps_which_keys_it_has() -> None:
    lacking: Partial = {"user": "ann"}
    codec, form = value_codec(Partial), OutputType(Partial, where="test")
    reader = RecordType.of(Partial, where="test").reader(form.arrow_schema, restores=True)
    assert codec.decode(codec.encode(lacking)) == lacking
    assert reader.read(form.to_batch([lacking])) == form.stored([lacking]) == [lacking]
    unclear = OutputType(Unclear, where="test")
    assert unclear.stored([{"user": "ann"}]) == [{"user": "ann"}]
    with pytest.raises(sk.StateTypeError, match="may be absent or None, and a column has one null"):
        _ = unclear.arrow_schema


@given(
    st.sampled_from(KINDS),
    st.text(st.characters(codec="utf-8"), max_size=3),
    st.integers(-(2**63), 2**63 - 1),
)
def test_any_values_are_kept_in_rows_and_columns(cls: Any, user: str, score: int) -> None:
    expected = content(made(cls, user, score))
    codec, form = value_codec(cls), OutputType(cls, where="test")
    reader = RecordType.of(cls, where="test").reader(form.arrow_schema, restores=True)
    row = codec.encode(made(cls, user, score))
    batch = form.to_batch([made(cls, user, score)])
    (stored,) = form.stored([made(cls, user, score)])
    for found in (codec.decode(row), *reader.read(batch), stored):
        assert content(found) == expected


class Nested(msgspec.Struct, dict=True):
    user: str
    inner: Nested | int | None = None


@dataclasses.dataclass
class Chain:
    user: str
    inner: list[Chain]


def test_records_inside_of_their_own_class_are_copied_with_all_that_they_hold_or_refused() -> None:
    nested = Nested("ann", Nested("bob"))
    copied: Any = (OutputType(Nested, where="test").copy or copy.copy)(nested)
    assert copied == nested
    assert copied.inner is not nested.inner
    cast("Any", nested.inner).more = "kept?"
    copied = (OutputType(Nested, where="test").copy or copy.copy)(nested)
    assert copied.inner.more == "kept?"
    assert not value_codec(Nested).accepts(nested)
    chain = Chain("ann", [Chain("bob", [])])
    cast("Any", chain.inner[0]).more = "kept?"
    assert ".inner[0]: Chain(" in value_codec(Chain).reason(chain)
    assert "it has 'more' beside the fields of Chain" in value_codec(Chain).reason(chain)
    chain.inner = [chain]
    copied = (OutputType(Chain, where="test").copy or copy.copy)(chain)
    assert copied.inner[0] is copied


class Cents:
    """A descriptor that keeps the value of a field under another name."""

    def __get__(self, record: Any, _cls: Any) -> int:
        return 0 if record is None else int(record.in_cents)

    def __set__(self, record: Any, value: int) -> None:
        record.in_cents = value


@dataclasses.dataclass
class Priced:
    user: str
    cents: int = Cents()  # type: ignore[assignment]  # as the dataclasses documentation does it


class RootTags(pydantic.RootModel[dict[str, int]]):
    pass


class Tagged(pydantic.BaseModel):
    user: str
    tags: RootTags


@pytest.mark.parametrize("value", [Priced("ann", 5), Tagged(user="ann", tags=RootTags({"a": 1}))])
def test_fields_with_a_descriptor_and_models_of_a_root_are_kept(value: Any) -> None:
    codec, form = value_codec(type(value)), OutputType(type(value), where="test")
    assert codec.accepts(value)
    assert codec.decode(codec.encode(value)) == value
    batch, records = form.to_batch([value]), RecordType.of(type(value), where="test")
    for restores in (True, False):
        assert records.reader(batch.schema, restores=restores).read(batch) == [value]
    assert form.stored([value]) == [value]


def test_a_mapping_may_have_the_root_of_a_model() -> None:
    found = RecordType.of(Tagged, where="test").coerce({"user": "ann", "tags": {"a": 1}})
    assert found == Tagged(user="ann", tags=RootTags({"a": 1}))
