"""Records in and out of Arrow: round trips, and refusals that name what is wrong."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import os
import time
import typing
import uuid
import zoneinfo
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import cloudpickle
import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statekit.codec.annotations import peel
from statekit.errors import ProcessError, StateTypeError
from statekit.records.output_type import OutputType
from statekit.records.record_type import RecordType

UTC = dt.UTC
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=UTC)
WHERE = "turnaround, parameter 'flight'"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mode(enum.IntFlag):
    READ = 1
    WRITE = 2


class FlightTuple(NamedTuple):
    tail: str
    minutes: int
    gate: str | None = None


class FlightStruct(msgspec.Struct):
    tail: str
    minutes: int
    gate: str | None = None


@dataclasses.dataclass
class FlightClass:
    tail: str
    minutes: int
    gate: str | None = None


class FlightModel(pydantic.BaseModel):
    tail: str
    minutes: int = pydantic.Field(ge=0)
    gate: str | None = None


class FlightDict(TypedDict):
    tail: str
    minutes: int
    gate: NotRequired[str]


FLIGHTS: list[Any] = [FlightTuple, FlightStruct, FlightClass, FlightModel, FlightDict]


class Stamped(NamedTuple):
    at: dt.datetime


class Tree(msgspec.Struct):
    name: str
    children: list[Tree]


class KeywordOnly(msgspec.Struct, kw_only=True, rename="camel"):
    tail_number: str
    from_airport: str = "JFK"


@dataclasses.dataclass
class Derived:
    hours: int
    minutes: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.minutes = self.hours * 60


class Linked(pydantic.BaseModel):
    link: pydantic.AnyUrl
    tail: str = pydantic.Field(alias="tailNumber")


def reader(cls: Any, batch: Any, **options: Any) -> Any:
    return RecordType.of(cls, where=WHERE).reader(batch.schema, **options)


def read(cls: Any, columns: dict[str, Any]) -> list[Any]:
    batch = pa.record_batch(columns)
    return list(reader(cls, batch).read(batch))


def output(annotation: Any) -> OutputType:
    return OutputType(annotation, where="turnaround, output")


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(ProcessError) as caught:
        call(*arguments)
    return str(caught.value)


# --- round trips ---------------------------------------------------------------------------------

INTS = st.integers(-(2**63), 2**63 - 1)
ZONED = st.datetimes(
    min_value=dt.datetime(1900, 1, 1), max_value=dt.datetime(2100, 1, 1), timezones=st.timezones()
)
# Python says that a time in the gap or fold of a clock change equals nothing in another zone.
COMPARABLE = ZONED.filter(lambda instant: instant == instant.astimezone(UTC))
INSTANTS = st.datetimes(timezones=st.just(UTC)) | COMPARABLE
SPANS = st.timedeltas(dt.timedelta(days=-(10**8)), dt.timedelta(days=10**8))
DECIMALS = st.decimals(-(10**19), 10**19, places=18, allow_nan=False)
LEAF_FIELDS: dict[str, tuple[Any, Any]] = {
    "at": (dt.datetime, INSTANTS),
    "note": (str | None, st.none() | st.text(max_size=5)),
}


def rich_fields(leaf: Any, leaves: Any) -> dict[str, tuple[Any, Any]]:
    small, word = st.integers(0, 9), st.text(max_size=3)
    return {
        "whole": (int, INTS),
        "ratio": (float, st.floats(allow_nan=False)),
        "flag": (bool, st.booleans()),
        "raw": (bytes | None, st.none() | st.binary(max_size=5)),
        "day": (dt.date, st.dates()),
        "span": (dt.timedelta, SPANS),
        "amount": (Decimal, DECIMALS),
        "uid": (uuid.UUID, st.uuids()),
        "colour": (Colour | None, st.none() | st.sampled_from(Colour)),
        "grade": (Literal["a", "b"], st.sampled_from(["a", "b"])),
        "maybe_at": (dt.datetime | None, st.none() | INSTANTS),
        "tags": (list[str | None] | None, st.none() | st.lists(st.none() | word, max_size=3)),
        "points": (tuple[int, ...], st.lists(small, max_size=3).map(tuple)),
        "unique": (set[int], st.sets(small, max_size=3)),
        "pair": (tuple[int, Colour], st.tuples(INTS, st.sampled_from(Colour))),
        "counts": (dict[str, int | None], st.dictionaries(word, st.none() | INTS, max_size=2)),
        "leaf": (leaf | None, st.none() | leaves),
        "leaves": (list[leaf], st.lists(leaves, max_size=2)),
        "by_name": (dict[str, leaf], st.dictionaries(word, leaves, max_size=2)),
    }


def make(flavour: str, name: str, fields: dict[str, tuple[Any, Any]]) -> Any:
    typed = [(field, annotation) for field, (annotation, _) in fields.items()]
    dynamic: Any = typing
    if flavour == "namedtuple":
        return dynamic.NamedTuple(name, typed)
    if flavour == "struct":
        return msgspec.defstruct(name, typed)
    if flavour == "dataclass":
        return dataclasses.make_dataclass(name, typed)
    if flavour == "pydantic":
        models: Any = pydantic
        return models.create_model(name, **{field: (kind, ...) for field, kind in typed})
    return dynamic.TypedDict(name, dict(typed))


def records_of(cls: Any, fields: dict[str, tuple[Any, Any]]) -> Any:
    return st.builds(cls, **{name: strategy for name, (_, strategy) in fields.items()})


@pytest.mark.parametrize("flavour", ["namedtuple", "struct", "dataclass", "pydantic", "typeddict"])
def test_every_flavour_reads_back_its_records(flavour: str) -> None:
    leaf = make(flavour, "Leaf", LEAF_FIELDS)
    fields = rich_fields(leaf, records_of(leaf, LEAF_FIELDS))
    rich = make(flavour, "Rich", fields)
    written, record_type = output(rich), RecordType.of(rich, where=WHERE)
    records = st.lists(records_of(rich, fields), max_size=3)
    read_back = record_type.reader(written.arrow_schema)

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(records)
    def round_trip(rs: list[Any]) -> None:
        batch = written.to_batch(rs)
        batch.validate(full=True)
        assert read_back.read(batch) == rs
        assert read_back.read(batch.slice(1)) == rs[1:]
        assert written.stored(rs) == rs

    round_trip()


@pytest.mark.parametrize("cls", FLIGHTS)
def test_flat_records_of_every_flavour_keep_nulls_and_order(cls: Any) -> None:
    columns = {"tail": ["N1", "N2"], "minutes": [1, 2], "gate": ["A", None]}
    rows = read(cls, columns)
    batch = output(cls).to_batch(rows)
    assert batch.to_pydict() == columns
    assert reader(cls, batch).read(batch) == rows


def test_a_record_type_that_contains_itself_reads_as_deep_as_its_column() -> None:
    kid = pa.struct([("name", pa.string()), ("children", pa.list_(pa.string()))])
    message = refusal(read, Tree, {"name": ["root"], "children": pa.array([[]], pa.list_(kid))})
    assert "Tree.children[].children[] is declared as Tree" in message


# --- in: declarations and schemas ----------------------------------------------------------------


@pytest.mark.parametrize("annotation", [int, list[int], FlightTuple | None, dict[str, int], Any])
def test_a_type_that_is_not_a_record_type_is_refused_with_the_accepted_types(
    annotation: Any,
) -> None:
    with pytest.raises(StateTypeError, match=r"parameter 'flight'.*BaseModel.*TypedDict"):
        RecordType.of(annotation, where=WHERE)


def test_a_field_type_that_does_not_resolve_is_refused() -> None:
    @dataclasses.dataclass
    class Broken:
        x: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(StateTypeError, match=r"Nowhere.*top of a module"):
        RecordType.of(Broken, where=WHERE)


@pytest.mark.parametrize("cls", FLIGHTS)
def test_fields_are_marked_as_required_and_nullable(cls: Any) -> None:
    fields = RecordType.of(cls, where=WHERE).fields or {}
    assert [f.required for f in fields.values()] == [True, True, False]
    assert peel(fields["gate"].annotation)[1] == (cls is not FlightDict)


@pytest.mark.parametrize("cls", FLIGHTS)
def test_a_missing_required_column_is_named_with_the_existing_columns(cls: Any) -> None:
    message = refusal(read, cls, {"tail": ["N1"], "other": [1]})
    assert f"{cls.__name__} needs a column 'minutes'" in message
    assert "tail, other" in message


@pytest.mark.parametrize("cls", FLIGHTS)
def test_a_missing_column_with_a_default_takes_the_default(cls: Any) -> None:
    (record,) = read(cls, {"tail": ["N1"], "minutes": [3]})
    assert record == (cls(tail="N1", minutes=3))


@pytest.mark.parametrize("cls", FLIGHTS)
def test_the_error_for_a_column_of_a_wrong_type_advises_a_cast(cls: Any) -> None:
    message = refusal(read, cls, {"tail": ["N1"], "minutes": [3.5]})
    assert f"{cls.__name__}.minutes is declared as" in message
    assert "double" in message
    assert "cast the column in the DataFrame" in message


@pytest.mark.parametrize("cls", FLIGHTS)
def test_a_null_in_a_mandatory_field_names_the_field_and_the_row(cls: Any) -> None:
    message = refusal(read, cls, {"tail": ["N1", "N2"], "minutes": [3, None]})
    assert f"{cls.__name__}.minutes is null" in message
    assert "row 1" in message
    assert "'tail': 'N2'" in message


class Pair(NamedTuple):
    tail: str
    minutes: int


class Doubled(Pair):
    """Does more in its constructor than to keep its fields."""

    def __new__(cls, tail: str, minutes: int) -> Doubled:
        return super().__new__(cls, tail * 2, minutes)


class Counted(Pair):
    made = 0

    def __init__(self, tail: str, minutes: int) -> None:
        type(self).made += 1


def test_a_named_tuples_own_constructor_is_called() -> None:
    columns = {"tail": ["N1", "N2"], "minutes": [3, 4]}
    assert read(Doubled, columns) == [("N1N1", 3), ("N2N2", 4)]
    Counted.made = 0
    assert read(Counted, columns) == [("N1", 3), ("N2", 4)]
    assert Counted.made == 2


@pytest.mark.parametrize("module", ["namedtuple_Pair", None])
def test_a_constructor_that_wraps_that_of_a_named_tuple_is_called(module: str | None) -> None:
    class Checked(NamedTuple):
        tail: str
        minutes: int

    given = Checked.__new__

    @functools.wraps(given)
    def checked(cls: Any, tail: str, minutes: int) -> Any:
        return given(cls, tail.lower(), minutes)

    changed: Any = checked
    changed.__module__ = module
    Checked.__new__ = changed  # type: ignore[method-assign]
    assert read(Checked, {"tail": ["N1"], "minutes": [3]}) == [("n1", 3)]


def test_leading_and_extra_columns_are_ignored() -> None:
    batch = pa.record_batch([[7], ["N1"], [1], [2]], names=["minutes", "tail", "minutes", "extra"])
    assert reader(FlightTuple, batch, first_column=1).read(batch) == [FlightTuple("N1", 1)]


def test_an_empty_batch_reads_as_no_records() -> None:
    batch = output(FlightTuple).to_batch([])
    assert reader(FlightTuple, batch).read(batch) == []


# --- in: values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_and_zone_are_utc_instants(zone: str, unit: str) -> None:
    instants = [NOON, dt.datetime(1931, 1, 1, tzinfo=UTC)]
    records = read(Stamped, {"at": pa.array(instants, pa.timestamp(unit, zone))})
    assert [record.at for record in records] == instants
    assert {record.at.tzinfo for record in records} == {UTC}


@pytest.mark.parametrize(
    "instant",
    [
        dt.datetime.min.replace(tzinfo=UTC),
        dt.datetime.max.replace(tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
)
def test_extreme_instants_survive(instant: dt.datetime) -> None:
    batch = output(Stamped).to_batch([Stamped(instant)])
    assert reader(Stamped, batch).read(batch) == [Stamped(instant)]


def test_the_local_time_zone_of_the_process_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = output(Stamped).to_batch([Stamped(NOON)])
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert os.environ["TZ"] == "Asia/Tokyo"
        assert reader(Stamped, batch).read(batch) == [Stamped(NOON)]
        assert output(Stamped).to_batch([Stamped(NOON)]) == batch
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_naive_timestamp_column_is_refused_for_a_datetime() -> None:
    column = pa.array([0], pa.timestamp("us"))
    message = refusal(read, Stamped, {"at": column})
    assert "naive" in message
    assert "cast it in the DataFrame to a timestamp with a time zone" in message


def test_nanoseconds_are_read_if_they_are_whole_microseconds() -> None:
    columns = {"at": pa.array([1000], pa.timestamp("ns")), "d": pa.array([5000], pa.duration("ns"))}
    (record,) = read(dict, columns)
    assert record == {"at": dt.datetime(1970, 1, 1, 0, 0, 0, 1), "d": dt.timedelta(microseconds=5)}
    assert {type(value) for value in record.values()} == {dt.datetime, dt.timedelta}


def test_a_timestamp_outside_of_pythons_years_is_reported_with_its_row() -> None:
    column = pa.array([2**62], pa.timestamp("us", "UTC"))
    assert "Stamped.at" in refusal(read, Stamped, {"at": column})


class Mixed(NamedTuple):
    ratio: float
    amount: Decimal
    uid: uuid.UUID
    mode: Mode
    either: int | str


def test_columns_convert_where_nothing_is_lost() -> None:
    uid = uuid.UUID(int=5)
    columns = {"ratio": [1], "amount": [2], "uid": [str(uid)], "mode": [3], "either": ["x"]}
    (record,) = read(Mixed, columns)
    assert record == Mixed(1.0, Decimal(2), uid, Mode.READ | Mode.WRITE, "x")
    assert type(record.ratio) is float


class Choice(NamedTuple):
    colour: Colour
    grade: Literal["a", "b"]
    uid: uuid.UUID


@pytest.mark.parametrize(
    ("field", "value"), [("colour", "green"), ("grade", "c"), ("uid", "not-a-uuid")]
)
def test_a_value_that_no_choice_allows_is_named(field: str, value: str) -> None:
    row = {"colour": "red", "grade": "a", "uid": str(uuid.UUID(int=1)), field: value}
    message = refusal(read, Choice, {name: [each] for name, each in row.items()})
    assert f"Choice.{field}" in message
    assert repr(value) in message


def test_pydantic_validators_run_and_name_the_row() -> None:
    message = refusal(read, FlightModel, {"tail": ["N1", "N2"], "minutes": [3, -1]})
    assert "FlightModel" in message
    assert "row 1 of a batch, {'tail': 'N2', 'minutes': -1}" in message
    assert "greater than or equal to 0" in message


def test_pydantic_reads_its_own_types_and_aliases() -> None:
    (record,) = read(Linked, {"link": ["https://a.example/"], "tail": ["N1"]})
    assert (str(record.link), record.tail) == ("https://a.example/", "N1")


def test_keyword_only_and_renamed_fields_read_by_field_name() -> None:
    record = KeywordOnly(tail_number="N1", from_airport="LGA")
    batch = output(KeywordOnly).to_batch([record])
    assert batch.schema.names == ["tail_number", "from_airport"]
    assert reader(KeywordOnly, batch).read(batch) == [record]


def test_a_field_outside_of_the_constructor_is_written_and_computed_again() -> None:
    batch = output(Derived).to_batch([Derived(2)])
    assert batch.to_pylist() == [{"hours": 2, "minutes": 120}]
    assert reader(Derived, batch).read(batch) == [Derived(2)]


def test_a_plain_dict_takes_all_columns_with_instants_in_utc() -> None:
    nested = pa.array(
        [{"at": NOON, "xs": [1, None]}],
        pa.struct([("at", pa.timestamp("us", "Asia/Tokyo")), ("xs", pa.list_(pa.int64()))]),
    )
    pairs = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))
    (record,) = read(dict[str, Any], {"nested": nested, "pairs": pairs, "none": pa.nulls(1)})
    assert record == {"nested": {"at": NOON, "xs": [1, None]}, "pairs": {"k": 1}, "none": None}
    assert record["nested"]["at"].tzinfo is UTC


def test_dictionary_encoded_columns_read_as_their_values() -> None:
    tails = pa.array(["N1", "N1"]).dictionary_encode()
    assert [r.tail for r in read(FlightTuple, {"tail": tails, "minutes": [1, 2]})] == ["N1", "N1"]


# --- in: records of this process -----------------------------------------------------------------


@pytest.mark.parametrize("cls", FLIGHTS)
def test_instances_pass_and_mappings_are_validated(cls: Any) -> None:
    record_type = RecordType.of(cls, where=WHERE)
    record = record_type.coerce({"tail": "N1", "minutes": 3})
    assert record == cls(tail="N1", minutes=3)
    assert cls is FlightDict or record_type.coerce(record) is record
    assert "does not validate" in refusal(record_type.coerce, {"tail": "N1", "minutes": "many"})
    assert "does not validate" in refusal(record_type.coerce, {"tail": "N1"})
    assert f"records are of type {cls.__name__}, and this one is of type int: 5" in refusal(
        record_type.coerce, 5
    )


def test_a_class_of_a_script_can_still_be_pickled_after_mappings_were_validated() -> None:
    @dataclasses.dataclass
    class Local:  # cloudpickle sends a local class by value, like one of __main__
        tail: str

    record_type = RecordType.of(Local, where=WHERE)
    assert record_type.coerce({"tail": "N1"}) == Local("N1")
    batch = output(Local).to_batch([Local("N1")])
    sent = cloudpickle.dumps((record_type, reader(Local, batch), output(Local)))
    again, reads, writes = cloudpickle.loads(sent)
    assert writes.to_batch(reads.read(batch)) == batch
    assert again.coerce({"tail": "N1"}).tail == "N1"


def test_fields_that_the_constructor_does_not_take_are_not_validated() -> None:
    record_type = RecordType.of(Derived, where=WHERE)
    assert record_type.coerce({"hours": 2}) == Derived(2)


def test_a_plain_dict_record_is_any_mapping_and_nothing_else() -> None:
    record_type = RecordType.of(dict, where=WHERE)
    assert record_type.coerce({"a": 1}) == {"a": 1}
    assert "of type tuple: ('a', 1)" in refusal(record_type.coerce, ("a", 1))


def test_a_key_that_a_record_lacks_is_named_with_the_record() -> None:
    record_type = RecordType.of(dict, where=WHERE)
    with pytest.raises(KeyError) as caught:
        record_type.getter(("tail", "minutes"))({"tail": "N1"})
    message = str(record_type.missing(caught.value, {"tail": "N1"}))
    assert message == f"{WHERE}: a record has no 'minutes'. The record: {{'tail': 'N1'}}"


@pytest.mark.parametrize("cls", FLIGHTS)
def test_getters_take_one_field_or_several(cls: Any) -> None:
    record_type = RecordType.of(cls, where=WHERE)
    record = cls(tail="N1", minutes=3)
    assert record_type.getter(("minutes",))(record) == 3
    assert record_type.getter(("minutes", "tail"))(record) == (3, "N1")
    assert "no field 'wing'" in refusal(record_type.getter, ("tail", "wing"))
    assert "no field named" in refusal(record_type.getter, ())


# --- out: schemas --------------------------------------------------------------------------------


class Priced(pydantic.BaseModel):
    price: Decimal = pydantic.Field(max_digits=10, decimal_places=2)
    cost: Annotated[Decimal, pydantic.Field(max_digits=8, decimal_places=3)] | None


SCHEMAS: list[tuple[Any, dict[str, tuple[Any, bool]]]] = [
    (int, {"value": (pa.int64(), False)}),
    (int | float | None, {"value": (pa.float64(), True)}),
    (tuple[str, dt.date], {"_1": (pa.string(), False), "_2": (pa.date32(), False)}),
    (Colour, {"value": (pa.string(), False)}),
    (Mode, {"value": (pa.int64(), False)}),
    (Literal[1, 2, None], {"value": (pa.int64(), True)}),
    (Priced, {"price": (pa.decimal128(10, 2), False), "cost": (pa.decimal128(8, 3), True)}),
    (Decimal, {"value": (pa.decimal128(38, 18), False)}),
    (
        list[int | None],
        {"value": (pa.list_(pa.field("element", pa.int64(), nullable=True)), False)},
    ),
    (
        dict[str, tuple[int, bytes]],
        {
            "value": (
                pa.map_(
                    pa.string(),
                    pa.field(
                        "value",
                        pa.struct(
                            [
                                pa.field("_1", pa.int64(), nullable=False),
                                pa.field("_2", pa.binary(), nullable=False),
                            ]
                        ),
                        nullable=False,
                    ),
                ),
                False,
            )
        },
    ),
]


@pytest.mark.parametrize(("annotation", "columns"), SCHEMAS)
def test_a_schema_follows_from_the_annotation(
    annotation: Any, columns: dict[str, tuple[Any, bool]]
) -> None:
    schema = output(annotation).arrow_schema
    expected = [pa.field(n, kind, nullable=null) for n, (kind, null) in columns.items()]
    assert schema.equals(pa.schema(expected), check_metadata=True)


@pytest.mark.parametrize(
    ("annotation", "record"),
    [
        (dict, {"a": 1}),
        (Any, object()),
        (int | str, "x"),
        (tuple[int, Any], (1, "x")),
        (FlightTuple | FlightStruct, FlightTuple("N1", 1)),
        (Tree, Tree("root", [Tree("kid", [])])),
        (list, [1, "x"]),
        (dict[int | None, int], {None: 1}),
    ],
)
def test_a_type_without_a_schema_works_until_a_schema_is_asked_for(
    annotation: Any, record: Any
) -> None:
    declared = output(annotation)
    assert declared.stored([record, record]) == [record, record]
    with pytest.raises(
        StateTypeError, match=r"turnaround, output: .*a sink, and Spark, need a schema"
    ):
        _ = declared.arrow_schema
    with pytest.raises(StateTypeError):
        declared.to_batch([record])


def test_only_record_outputs_have_a_record_type() -> None:
    assert output(int).record_type is None
    assert output(tuple[int, int]).record_type is None
    assert output(FlightTuple).record_type == RecordType.of(FlightTuple, where=WHERE)


# --- out: values ---------------------------------------------------------------------------------

MISFITS: list[tuple[Any, Any]] = [
    (int, "x"),
    (int, True),
    (int, 1.5),
    (int, None),
    (int, 2**63),
    (int, -(2**63) - 1),
    (float, "1.0"),
    (float, True),
    (float, 10**400),
    (bool, 1),
    (str, b"x"),
    (str, "\ud800"),
    (bytes, "x"),
    (dt.date, NOON),
    (dt.datetime, dt.date(2024, 1, 1)),
    (dt.datetime, dt.datetime(2024, 1, 1)),
    (dt.datetime, dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-1)))),
    (dt.timedelta, dt.timedelta.max),
    (dt.timedelta, 5),
    (Decimal, Decimal("1E-19")),
    (Decimal, Decimal("NaN")),
    (Decimal, 1),
    (uuid.UUID, "x"),
    (Colour, "red"),
    (Literal["a"], "b"),
    (Literal[1], True),
    (Literal["a"], []),
    (list[int], (1,)),
    (list[int], [1, "x"]),
    (list[int], [None]),
    (list[int], [2**63]),
    (typing.Sequence[str], "text"),
    (set[int], [1]),
    (tuple[int, ...], [1]),
    (tuple[int, int], (1,)),
    (tuple[int, int], (1, 2, 3)),
    (tuple[int, int], [1, 2]),
    (dict[str, int], {"a": "b"}),
    (dict[str, int], {1: 1}),
    (list[dt.datetime], [dt.datetime(2024, 1, 1)]),
    (FlightTuple, ("N1", 1, None)),
    (FlightTuple, FlightTuple("N1", 1.5)),  # type: ignore[arg-type]
    (FlightStruct, FlightTuple("N1", 1)),
    (FlightStruct, FlightStruct("N1", None)),  # type: ignore[arg-type]
    (FlightModel, FlightModel.model_construct(tail="N1")),
    (FlightModel, FlightModel.model_construct(tail="N1", minutes="3")),
    (FlightDict, {"tail": "N1"}),
    (FlightDict, {"tail": "N1", "minutes": 1, "wing": 2}),
    (list[FlightClass], [FlightClass("N1", "3")]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("annotation", "wrong"), MISFITS)
def test_values_of_other_types_are_refused_in_the_same_way_everywhere(
    annotation: Any, wrong: Any
) -> None:
    declared = output(annotation)
    messages = {refusal(declared.stored, [wrong]), refusal(declared.to_batch, [wrong])}
    assert len(messages) == 1
    assert "turnaround, output: output 0" in messages.pop()


def test_a_refusal_names_the_field_type_value_and_record() -> None:
    good, bad = FlightTuple("N1", 1), FlightTuple("N2", "late")  # type: ignore[arg-type]
    message = refusal(output(FlightTuple).to_batch, [good, bad])
    assert message == (
        "turnaround, output: output 1, FlightTuple(tail='N2', minutes='late', gate=None), does not "
        "fit FlightTuple: FlightTuple.minutes is declared as int, got 'late' of type str"
    )


def test_a_decimal_that_would_be_rounded_is_refused() -> None:
    bad = Priced.model_construct(price=Decimal("1.234"), cost=None)
    message = refusal(output(Priced).to_batch, [bad])
    assert "Priced.price" in message
    assert "1.234" in message


def test_ints_pass_as_floats_and_instants_pass_in_any_zone() -> None:
    tokyo = NOON.astimezone(dt.timezone(dt.timedelta(hours=9)))
    batch = output(tuple[float, dt.datetime]).to_batch([(2**53 + 1, tokyo), (0.5, NOON)])
    assert batch.to_pydict() == {"_1": [float(2**53 + 1), 0.5], "_2": [NOON, NOON]}


@settings(deadline=None)  # Arrow is loaded at its first use
@given(
    st.lists(st.tuples(INTS, INTS | st.none(), st.floats() | INTS, st.floats() | INTS | st.none()))
)
def test_numbers_are_written_as_arrow_writes_them(rows: list[tuple[Any, ...]]) -> None:
    batch = output(tuple[int, int | None, float, float | None]).to_batch(rows)
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 4
    floats = [[None if v is None else float(v) for v in column] for column in columns[2:]]
    assert batch.columns[:2] == [pa.array(column, pa.int64()) for column in columns[:2]]
    for written, column in zip(batch.columns[2:], floats, strict=True):
        assert written.null_count == column.count(None)
        assert list(map(repr, written.to_pylist())) == list(map(repr, column))
    batch.validate(full=True)


@pytest.mark.parametrize("wrong", [2**63, -(2**63) - 1])
def test_an_int_of_more_than_64_bits_is_refused_at_any_depth(wrong: int) -> None:
    for rows in ([(wrong,)], [(1,), (wrong,)], [(wrong,), (1,)]):
        assert str(wrong) in refusal(output(tuple[int]).to_batch, rows)


@pytest.mark.parametrize(("fold", "hour"), [(0, 0), (1, 1)])
def test_a_time_that_a_clock_change_repeats_is_the_instant_of_its_fold(
    fold: int, hour: int
) -> None:
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    repeated = dt.datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=fold)
    expected = dt.datetime(2024, 10, 27, hour, 30, tzinfo=UTC)
    batch = output(tuple[dt.datetime, list[dt.datetime]]).to_batch([(repeated, [repeated])])
    assert batch.to_pylist() == [{"_1": expected, "_2": [expected]}]


@pytest.mark.parametrize("hours", [-1, 1])
def test_an_instant_outside_of_the_years_of_utc_is_refused(hours: int) -> None:
    zone = dt.timezone(dt.timedelta(hours=hours))
    end = (dt.datetime.min if hours > 0 else dt.datetime.max).replace(tzinfo=zone)
    for rows in ([(end,)], [(NOON,), (end,), (None,)]):
        assert "1 to 9999" in refusal(output(tuple[dt.datetime | None]).to_batch, rows)


def test_subclasses_of_declared_types_pass() -> None:
    class Text(str):
        __slots__ = ()

    batch = output(tuple[str, int]).to_batch([(Text("x"), Mode.READ)])
    assert batch.to_pylist() == [{"_1": "x", "_2": 1}]


def test_sets_are_written_in_one_order() -> None:
    words = {"pear", "fig", "apple"}
    assert output(set[str]).to_batch([words]).to_pylist() == [{"value": sorted(words)}]


class Fruit(enum.Enum):
    PEAR = "c"
    FIG = "a"
    APPLE = "d"
    PLUM = "b"


@pytest.mark.parametrize(
    ("type_", "value", "written"),
    [
        (set[Fruit], set(Fruit), ["a", "b", "c", "d"]),
        (
            frozenset[tuple[Fruit, ...]],
            frozenset((fruit, Fruit.FIG) for fruit in Fruit),
            [[first, "a"] for first in "abcd"],
        ),
        (
            set[frozenset[str]],
            {frozenset(word) for word in ("dc", "ba", "ad", "cb")},
            [["a", "b"], ["a", "d"], ["b", "c"], ["c", "d"]],
        ),
        (
            set[frozenset[Fruit]],
            {frozenset({one, other}) for one, other in zip(Fruit, reversed(Fruit), strict=True)},
            [["a", "d"], ["b", "c"]],
        ),
    ],
    ids=["members", "tuples of members", "sets", "sets of members"],
)
def test_sets_of_values_without_an_order_are_written_in_one(
    type_: Any, value: Any, written: list[Any]
) -> None:
    assert output(type_).to_batch([value]).to_pylist() == [{"value": written}]
