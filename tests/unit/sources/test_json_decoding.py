"""JSON documents become records: of every class, and what sinks write is read back."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import pickle
import typing
import uuid
from decimal import Decimal
from typing import Any, NamedTuple

import cloudpickle
import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from statekit.errors import ProcessError, StatekitError
from statekit.records.json_rows import json_rows
from statekit.records.output_type import OutputType
from statekit.records.union import records_of
from statekit.sinks.protocol.output_schema import schema_for_sinks
from statekit.sources.decoding.json_decoding import JsonDecoder
from statekit.sources.decoding.json_documents import document_decoder
from tests.support.effort import SOAK
from tests.support.generated_types import shape, typed_values


def batch_of(*documents: bytes | None, **columns: Any) -> pa.RecordBatch:
    value = pa.array(documents, pa.binary())
    return pa.record_batch({"value": value, "__offset": range(len(documents)), **columns})


def decoder(*classes: Any, **columns: str) -> JsonDecoder:
    return JsonDecoder(records_of(*classes, where="orders"), "orders", columns)


class Order(NamedTuple):
    customer: str
    cents: int
    note: str | None = None
    rate: float = 1.0


@dataclasses.dataclass
class OrderClass:
    customer: str
    cents: int
    note: str | None = None
    rate: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class OrderFrozen:
    customer: str
    cents: int
    note: str | None = None
    rate: float = 1.0


class OrderStruct(msgspec.Struct):
    customer: str
    cents: int
    note: str | None = None
    rate: float = 1.0


class OrderModel(pydantic.BaseModel):
    customer: str
    cents: int
    note: str | None = None
    rate: float = 1.0


CLASSES = [Order, OrderClass, OrderFrozen, OrderStruct, OrderModel]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_is_read_with_defaults_and_the_fast_way(cls: Any) -> None:
    assert document_decoder(records_of(cls, where="orders")) is not None
    decoded = decoder(cls)(
        "all", batch_of(b'{"customer":"ada","cents":5,"more":[]}', b'{"cents":1,"customer":""}')
    )
    assert shape(decoded.records) == shape([cls(**_all("ada", 5)), cls(**_all("", 1))])
    assert decoded.bad == []


def _all(customer: str, cents: int) -> dict[str, Any]:
    return {"customer": customer, "cents": cents, "note": None, "rate": 1.0}


@pytest.mark.parametrize("cls", CLASSES)
def test_bad_documents_are_told_apart_and_the_others_keep_their_order(cls: Any) -> None:
    documents = [
        b'{"customer":"a","cents":1}',
        b'{"customer":"b","cents":"x"}',
        b'{"customer":"c","cents":2,"rate":"NaN"}',
        b"{",
        b"[]",
        None,
        b'{"customer":"\xff","cents":2}',
        b'{"customer":"d","cents":3}',
        b'{"cents":3}',
    ]
    decoded = decoder(cls)("p0", batch_of(*documents))
    assert [record.customer for record in decoded.records] == ["a", "c", "d"]
    assert repr(decoded.records[1].rate) == "nan"
    assert [bad.offset for bad in decoded.bad] == ["1", "3", "4", "5", "6", "8"]
    assert [bad.value for bad in decoded.bad] == [documents[at] or b"" for at in (1, 3, 4, 5, 6, 8)]
    assert {(bad.source, bad.partition) for bad in decoded.bad} == {("orders", "p0")}
    assert all(bad.error for bad in decoded.bad)


class Kind(enum.Enum):
    CARD = "card"


class Leg(NamedTuple):
    to: str
    miles: float = 0.0


@dataclasses.dataclass
class Deep:
    raw: bytes
    legs: list[Leg]
    by_day: dict[dt.date, Leg | None]
    wait: dt.timedelta
    price: Decimal
    id: uuid.UUID
    kind: Kind
    at: dt.datetime
    later: dict[str, dt.datetime]
    pair: tuple[int, bytes]


def test_all_types_have_their_json_form() -> None:
    document = msgspec.json.encode(
        {
            "raw": "00ff",
            "legs": [{"to": "JFK"}, {"to": "LAX", "miles": "Infinity"}],
            "by_day": {"2026-01-31": None},
            "wait": "PT2H",
            "price": "1.50",
            "id": "12345678-1234-5678-1234-567812345678",
            "kind": "card",
            "at": "2026-01-31T06:00:00+01:00",
            "later": {"x": "2026-01-31 06:00Z"},
            "pair": [1, "ff"],
        }
    )
    expected = Deep(
        b"\x00\xff",
        [Leg("JFK"), Leg("LAX", float("inf"))],
        {dt.date(2026, 1, 31): None},
        dt.timedelta(hours=2),
        Decimal("1.50"),
        uuid.UUID("12345678-1234-5678-1234-567812345678"),
        Kind.CARD,
        dt.datetime(2026, 1, 31, 5, tzinfo=dt.UTC),
        {"x": dt.datetime(2026, 1, 31, 6, tzinfo=dt.UTC)},
        (1, b"\xff"),
    )
    assert shape(decoder(Deep)("all", batch_of(document)).records) == shape([expected])


class Timed(NamedTuple):
    at: dt.datetime | None


@pytest.mark.parametrize("cls", [Timed, msgspec.defstruct("At", [("at", dt.datetime | None)])])
def test_times_become_utc_and_a_time_without_a_zone_is_bad(cls: Any) -> None:
    times = ["2026-01-31T06:00:00Z", "2026-01-31T06:00:00-05:00", "2026-01-31T06:00:00", None]
    documents = [msgspec.json.encode({"at": at}) for at in times]
    decoded = decoder(cls)("all", batch_of(*documents))
    assert [of.at and (of.at.hour, of.at.tzinfo) for of in decoded.records] == [
        (6, dt.UTC),
        (11, dt.UTC),
        None,
    ]
    (bad,) = decoded.bad
    assert bad.offset == "2"
    assert "no time zone" in bad.error


def test_digits_of_decimals_are_kept_and_floats_have_a_limit() -> None:
    class Amount(NamedTuple):
        price: Decimal
        rate: float
        raw: bytes = b""

    documents = [
        b'{"price":1.00000000000000000000001,"rate":0.1,"raw":""}',
        b'{"price":"7","rate":1e400}',
    ]
    decoded = decoder(Amount)("all", batch_of(*documents))
    assert decoded.records == [Amount(Decimal("1.00000000000000000000001"), 0.1)]
    assert "range" in decoded.bad[0].error or "large" in decoded.bad[0].error


class Keyed(NamedTuple):
    key: str
    cents: int
    number: int | None = None
    at: dt.datetime = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


KEYED = [Keyed, dataclasses.make_dataclass("K", [("key", str), ("cents", int), ("number", int)])]


@pytest.mark.parametrize("cls", KEYED)
def test_fields_may_come_from_other_columns(cls: Any) -> None:
    batch = batch_of(
        b'{"cents":1}',
        b'{"cents":2,"key":"of the document"}',
        b'{"cents":"x"}',
        b'{"cents":4}',
        k=["a", "b", "c", None],
        partition=pa.array([0, 1, 2, 3], pa.int32()),
    )
    decoded = decoder(cls, key="k", number="partition")("all", batch)
    assert decoded.records == [cls("a", 1, 0), cls("b", 2, 1)]
    assert [bad.offset for bad in decoded.bad] == ["2", "3"]
    assert "null" in decoded.bad[1].error


def test_a_column_that_cannot_hold_its_field_is_no_bad_record() -> None:
    with pytest.raises(ProcessError, match=r"Keyed\.key is declared as str"):
        decoder(Keyed, key="k")("all", batch_of(b'{"cents":1}', k=[1]))


class Paid(msgspec.Struct, tag=True):
    cents: int


class Refused(msgspec.Struct, tag=True):
    reason: str


def test_types_of_a_union_are_told_apart_by_tags_or_names() -> None:
    decoded = decoder(Paid | Refused)(
        "all", batch_of(b'{"type":"Refused","reason":"limit"}', b'{"type":"Paid","cents":1}')
    )
    assert decoded.records == [Refused("limit"), Paid(1)]
    either = decoder(Order | OrderClass)
    decoded = either(
        "all",
        batch_of(
            b'{"Order":{"customer":"a","cents":1},"OrderClass":null}',
            b'{"OrderClass":{"customer":"b","cents":2}}',
            b'{"customer":"a","cents":1}',
        ),
    )
    assert decoded.records == [Order("a", 1), OrderClass("b", 2)]
    assert "no definite type" in decoded.bad[0].error


def test_plain_dicts_and_typed_dicts_are_read() -> None:
    class Row(typing.TypedDict):
        cents: int
        note: typing.NotRequired[str]

    batch = batch_of(b'{"cents":1,"note":null}', b'{"cents":2,"note":"x"}')
    assert decoder(dict)("all", batch).records == [
        {"cents": 1, "note": None},
        {"cents": 2, "note": "x"},
    ]
    expected = [{"cents": 1}, {"cents": 2, "note": "x"}]
    assert JsonDecoder(records_of(Row, where="rows"), "rows")("all", batch).records == expected


def test_renamed_fields_of_a_struct_are_read_by_both_names() -> None:
    renamed = msgspec.defstruct("Renamed", [("tail_no", str)], rename="camel")
    decoded = decoder(renamed)("all", batch_of(b'{"tailNo":"N1"}', b'{"tail_no":"N2"}'))
    assert [record.tail_no for record in decoded.records] == ["N1", "N2"]


def test_errors_of_a_class_are_bad_records() -> None:
    @dataclasses.dataclass
    class Positive:
        cents: int

        def __post_init__(self) -> None:
            if self.cents <= 0:
                raise ArithmeticError(f"{self.cents} is not positive")

    decoded = decoder(Positive)("all", batch_of(b'{"cents":1}', b'{"cents":0}'))
    assert decoded.records == [Positive(1)]
    assert "0 is not positive" in decoded.bad[0].error


def test_decoding_leaves_nothing_on_a_class_that_cannot_be_pickled() -> None:
    @dataclasses.dataclass
    class Local:
        kind: Kind
        inner: OrderClass

    decode = decoder(Local)
    decode("all", batch_of(b'{"kind":"card","inner":{"customer":"a","cents":1}}'))
    again = cloudpickle.loads(cloudpickle.dumps(decode))
    batch = batch_of(b'{"kind":"card","inner":{"customer":"a","cents":1}}')
    (record,) = again("all", batch).records
    assert record.inner == OrderClass("a", 1)
    assert pickle.loads(pickle.dumps(decoder(Order)))("all", batch_of()).records == []


def test_hostile_documents_end_as_bad_records() -> None:
    hostile = [b"[" * 100_000, b'{"a":' * 50_000, b'{"customer":"\\ud800","cents":1}', b"\x00", b""]
    decoded = decoder(Order)("all", batch_of(*hostile))
    assert decoded.records == []
    assert len(decoded.bad) == len(hostile)


def _model(name: str, fields: list[tuple[str, Any]]) -> Any:
    required: dict[str, Any] = {field: (kind, ...) for field, kind in fields}
    try:
        return pydantic.create_model(name, **required)
    except pydantic.errors.PydanticSchemaGenerationError:
        reject()  # pydantic knows no structs of msgspec


FLAVOURS: list[Any] = [NamedTuple, dataclasses.make_dataclass, msgspec.defstruct, _model]


@pytest.mark.slow
@settings(max_examples=2000 if SOAK else 100)
@given(st.data(), st.sampled_from(FLAVOURS))
def test_what_a_sink_writes_is_read_back(data: st.DataObject, flavour: Any) -> None:
    annotation, value = data.draw(typed_values())
    cls = flavour("R", [("one", annotation), ("two", int)])
    output = OutputType(cls, "test")
    try:
        build = getattr(cls, "model_construct", cls)
        (record,) = output.stored([build(one=value, two=1)])
        batch = output.to_batch([record])
    except StatekitError:
        assume(False)
    marked = pa.record_batch(batch.columns, schema=schema_for_sinks(batch.schema))
    documents = [msgspec.json.encode(row) for row in json_rows(marked)]
    decoded = decoder(cls)("all", batch_of(*documents))
    assert not decoded.bad, decoded.bad
    assert shape(decoded.records) == shape([record])
