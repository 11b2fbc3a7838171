"""Python values of all kinds and SQL types of all kinds, and what Spark makes of each pair."""

from __future__ import annotations

import array
import collections
import datetime as dt
import enum
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import numpy
import pandas
from pyspark.serializers import CPickleSerializer
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import stateful_processor_api_client as client
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType, VariantVal

EAST = dt.timezone(dt.timedelta(hours=2))

Pair = collections.namedtuple("Pair", "b a")


class Text(str):
    """A text of a class of its own."""


class Level(enum.IntEnum):
    LOW = 1


class Point:
    """An object with attributes."""

    def __init__(self) -> None:
        self.a = 1
        self.b = "x"

    def __repr__(self) -> str:
        return "Point()"


INTS = [
    0,
    7,
    -1,
    200,
    40_000,
    2**31,
    2**31 - 1,
    -(2**31),
    2**40,
    2**63 - 1,
    -(2**63),
    2**63,
    10**30,
]
FLOATS = [7.5, -0.0, 1e20, 1e300, float("nan"), float("inf"), -1e400, 0.1, 1e-5, 123456789.0]
FLOATS += [1e7, 9999999.0, 1e-3, 3e-5, 5e-324, -12.25]
TEXTS = ["7", "", "true", "ä☃", "😀", "\ud800", "\ud83d\ude00", "a\x00b"]
DECIMALS = [
    *("7", "7.5", "7.55", "7.555", "7.545", "7.005", "-7.005", "-0.00", "0", "-0E+3", "0E-30"),
    *("NaN", "Infinity", "-Infinity", "sNaN", "12345678.99", "123456789.99", "99999999.995"),
    *("99999999.994", "1E+5", "1E+20", "1E-20", "1.5E-10", "1E-400", "-1E-6", "1E-7"),
    *("12345678901234567890.123456789012345678", "123456789012345678901234567890"),
]
TIMES = [
    *(dt.date(2020, 1, 2), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1500, 2, 28)),
    dt.datetime(2020, 1, 2, 3, 4, 5, 678),
    dt.datetime(2020, 1, 2, 3, 4, 5, 678, dt.UTC),
    dt.datetime(2020, 1, 2, 23, 4, 5, tzinfo=EAST),
    dt.datetime(1960, 1, 1, 1, 1, 1, 5),
    dt.datetime(9999, 12, 30, 23, 59, 59, 999999),
    *(dt.time(1, 2, 3, 4), dt.time(1, 2, 3, 4, EAST)),
    *(dt.timedelta(1, 0, 5), dt.timedelta(-1, 0, 5), dt.timedelta(0), dt.timedelta.max),
]
OF_LIBRARIES = [
    *(numpy.int64(5), numpy.int8(5), numpy.uint64(2**63), numpy.float64(1.5), numpy.float32(0.1)),
    *(numpy.bool_(True), numpy.str_("x"), numpy.bytes_(b"x")),
    *(numpy.datetime64("2020-01-02T03:04:05"), numpy.datetime64("2020-01-02")),
    *(numpy.timedelta64(5, "s"), numpy.array([1, 2]), numpy.array([1.5])),
    *(pandas.Timestamp("2020-01-02 03:04:05.000678"), pandas.Timedelta(5, "s")),
    *(pandas.Timestamp("2020-01-02 03:04:05", tz="UTC"), pandas.NaT, pandas.NA),
]
COLLECTIONS = [
    *([], [1], [None], [1, None, 2.5], ["a"], [[1]], [[]], [{}], [(1, "x")], [b"\xff"]),
    *((), (1,), (1, 2), (1, "a"), ("a", 1), (1, None), (1, 2, 3), (True, 7), (numpy.int8(1), "y")),
    *([dt.date(2020, 1, 2), None], (dt.datetime(2020, 1, 2, 3, tzinfo=EAST),)),
    *([dt.timedelta(1)], [Decimal("1.25"), 1], {dt.date(2020, 1, 2)}, ["\ud800"]),
    *(range(3), {1, 2}, frozenset([1]), collections.deque([1])),
    *(array.array("i", [1, 2]), array.array("b", [1, -2]), array.array("d", [1.5])),
    *({}, {"a": 1}, {"a": None}, {None: 1}, {"a": 1, "b": "x"}, {"b": 2, "c": 3}, {1: 2}),
    *({1.5: 2}, {"1": "2"}, {True: 1}, {Decimal("1.5"): Decimal("2.5")}, {"a": 2.5}, {0.0: 1}),
    *({"a": [1]}, {"a": b"\x01"}, {dt.date(2020, 1, 2): dt.datetime(2020, 1, 2)}),
    *(collections.OrderedDict(a=1), {Decimal("-0.00"): Decimal("-0.0")}),
    *(Row(a=1, b="x"), Row(b="x", a=1), Row("1", "x"), Row(a=1), Row(a=None, b=None), Pair("x", 1)),
    *([Row(a=1, b="x")], [Pair("x", 1)]),
]
OTHERS = [
    *(None, True, False, b"7", b"\xff\x00", bytearray(b"ab"), memoryview(b"ab"), 1j),
    *(Text("s"), Level.LOW, Point(), VariantVal(bytes([12, 1]), bytes([1, 0, 0])), object),
]
VALUES: list[Any] = [
    *(*OTHERS, *INTS, *FLOATS, *TEXTS, *map(Decimal, DECIMALS), *TIMES),
    *(*OF_LIBRARIES, *COLLECTIONS),
]

TYPES = [
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
    *("decimal(10,2)", "decimal(38,18)", "decimal(5,0)", "decimal(3,3)"),
    *("string", "binary", "date", "timestamp", "timestamp_ntz"),
    "void",
    *("array<int>", "array<string>", "array<double>", "array<date>", "array<decimal(5,1)>"),
    *("array<struct<a:int,b:string>>", "array<array<int>>", "array<void>", "array<timestamp_ntz>"),
    *("map<string,int>", "map<int,int>", "map<double,int>", "map<date,timestamp_ntz>"),
    *("map<decimal(5,1),decimal(5,1)>", "map<string,array<int>>", "map<string,binary>"),
    *("struct<a:int,b:string>", "struct<a:boolean,b:double>", "struct<a:date>", "struct<a:void>"),
    "struct<a:struct<a:int,b:string>,b:array<int>>",
]


def shown(value: Any) -> str:
    """A value as both engines show it: of a map, what its keys have, whatever their order."""
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{shown(k)}: {shown(v)}" for k, v in value.items())) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, Row):
        return f"Row({', '.join(value.__fields__)})" + shown(list(value))
    if isinstance(value, tuple):
        return "(" + ", ".join(map(shown, value)) + ")"
    return repr(value)


class Failed(NamedTuple):
    """An error of Spark's, and where it was raised."""

    error: str


class OfSpark:
    """What Spark does to a value on its way into state and back, without a state.

    It is what the worker does to it in Python, and the functions that the JVM calls for it. One
    after the other in one process, where an error ends nothing.
    """

    def __init__(self, spark: SparkSession, schema: StructType) -> None:
        jvm: Any = spark._jvm
        self._python = jvm.org.apache.spark.sql.api.python.PythonSQLUtils
        self._java = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
        encoder = jvm.org.apache.spark.sql.catalyst.encoders.ExpressionEncoder.apply(self._java)
        defaults = [getattr(encoder, f"resolveAndBind$default${number}")() for number in (1, 2)]
        bound = encoder.resolveAndBind(*defaults)
        self._deserializer, self._serializer = bound.createDeserializer(), bound.createSerializer()
        self._schema = schema
        self._pickle: Any = CPickleSerializer().dumps
        client._load_numpy()

    def __call__(self, value: Any) -> Any:
        """What `get` of a state returns after `update((value,))`."""
        try:
            normal = tuple(map(client._normalize_state_value, (value,)))
            pickled = self._pickle(self._schema.toInternal(normal))
            row = self._python.toJVMRow(pickled, self._java, self._deserializer)
            stored = self._serializer.apply(row).copy()
            return tuple(pickle.loads(self._python.toPyRow(self._deserializer.apply(stored))))
        except Exception as error:  # noqa: BLE001 (of either language)
            return Failed(f"{type(error).__name__}: {str(error)[:300]}")


class Converts(StatefulProcessor):
    """Puts values into a state of each type, and tells what it gets back.

    Parameters:
        place: the kind of state, and which part of it.
        cases: values by the type that they are put into.
    """

    def __init__(self, place: str, cases: dict[str, list[Any]]) -> None:
        self.place = place
        self.cases = cases

    def init(self, handle: Any) -> None:
        self.states = []
        for number, of in enumerate(self.cases):
            name, held = f"state{number}", f"v {of}"
            if self.place == "value":
                state = handle.getValueState(name, held)
            elif self.place == "list":
                state = handle.getListState(name, held)
            elif self.place == "map value":
                state = handle.getMapState(name, "n int", held)
            else:
                state = handle.getMapState(name, held, "n int")
            self.states.append(state)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            for state, (of, values) in zip(self.states, self.cases.items(), strict=True):
                for number, found in enumerate(self._found(state, values)):
                    yield Row(key=f"{of} {number}", told=shown(found))

    def _found(self, state: Any, values: list[Any]) -> Iterator[Any]:
        if self.place == "value":
            for value in values:
                state.update((value,))
                yield state.get()
        elif self.place == "list":
            state.put([(value,) for value in values])
            state.appendList([(value,) for value in values])
            yield from state.get()
        elif self.place == "map value":
            for number, value in enumerate(values):
                state.updateValue((number,), (value,))
            yield from [pair for _, pair in sorted(state.iterator())] + [state.getValue((0,))]
        else:
            for value in values:
                state.clear()
                state.updateValue((value,), (7,))
                yield [*state.keys(), state.containsKey((value,)), tuple(state.getValue((value,)))]
                state.removeKey((value,))
                yield state.exists()
