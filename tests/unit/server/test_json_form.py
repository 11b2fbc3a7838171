"""A value has one JSON form, whichever way it is read."""

import dataclasses
import datetime as dt
import enum
import json
import math
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
import msgspec
import pyarrow.parquet as pq
import pydantic
import pytest

import statekit as sk
from statekit.query.client import Client
from statekit.testing import Harness
from tests.support.change_rows import decoded_rows
from tests.support.invoked import invoked
from tests.support.served import server

ZONE = dt.timezone(dt.timedelta(hours=2))


class Colour(enum.Enum):
    RED = "r"
    R = "RED"


class Level(enum.IntEnum):
    LOW = 1


class Place(NamedTuple):
    town: str
    of: dt.timedelta


@dataclasses.dataclass
class Box:
    town: str
    colour: Colour


class Struct(msgspec.Struct):
    number: int


class Model(pydantic.BaseModel):
    until: dt.date


class Row(NamedTuple):
    kind: Any
    value: Any
    form: Any
    """The JSON of the value."""


VALUES = {
    "whether": Row(bool, True, True),
    "number": Row(int, 5, 5),
    "beyond_floats": Row(int, 2**53 + 1, 2**53 + 1),
    "float_": Row(float, 1.5, 1.5),
    "nan": Row(float, math.nan, "NaN"),
    "infinity": Row(float, math.inf, "Infinity"),
    "minus": Row(list[float], [-math.inf, 0.5], ["-Infinity", 0.5]),
    "text": Row(str, "ann", "ann"),
    "raw": Row(bytes, b"\x00\xff", "00ff"),
    "day": Row(dt.date, dt.date(2026, 1, 31), "2026-01-31"),
    "instant": Row(
        dt.datetime, dt.datetime(2026, 1, 31, 8, 0, 0, 500_000, ZONE), "2026-01-31T06:00:00.500000Z"
    ),
    "hours": Row(dt.timedelta, dt.timedelta(hours=2), "PT2H"),
    "days": Row(
        dt.timedelta, dt.timedelta(days=400, seconds=61, microseconds=5), "P400DT1M1.000005S"
    ),
    "negative": Row(dt.timedelta, dt.timedelta(seconds=-90), "-PT1M30S"),
    "no_time": Row(dt.timedelta, dt.timedelta(0), "PT0S"),
    "price": Row(Decimal, Decimal("1.50"), "1.50"),
    "whole": Row(Decimal, Decimal("5"), "5"),
    "id": Row(uuid.UUID, uuid.UUID(int=5), str(uuid.UUID(int=5))),
    "colour": Row(Colour, Colour.RED, "r"),
    "level": Row(Level, Level.LOW, 1),
    "choice": Row(Literal["a", "b"], "b", "b"),
    "mixed_choice": Row(Literal["a", 1, None], 1, 1),
    "pair": Row(tuple[int, dt.timedelta], (1, dt.timedelta(hours=2)), [1, "PT2H"]),
    "many": Row(tuple[int, ...], (1, 2), [1, 2]),
    "some": Row(set[str], {"a"}, ["a"]),
    "place": Row(Place, Place("oslo", dt.timedelta(hours=2)), {"town": "oslo", "of": "PT2H"}),
    "box": Row(Box, Box("oslo", Colour.RED), {"town": "oslo", "colour": "r"}),
    "struct": Row(Struct, Struct(1), {"number": 1}),
    "model": Row(Model, Model(until=dt.date(2026, 1, 31)), {"until": "2026-01-31"}),
    "nothing": Row(int | None, None, None),
    "something": Row(dt.timedelta | None, dt.timedelta(hours=2), "PT2H"),
    "union": Row(int | str, "5", "5"),
    "union_of_structs": Row(Box | Struct, Struct(1), {"number": 1}),
    "unions": Row(list[int | str], [1, "1"], [1, "1"]),
    "by_text": Row(dict[str, bytes], {"a": b"\xff"}, {"a": "ff"}),
    "by_number": Row(dict[int, int], {5: 1}, {"5": 1}),
    "by_bool": Row(dict[bool, int], {True: 1}, {"true": 1}),
    "by_float": Row(dict[float, int], {1.5: 1, math.inf: 2}, {"1.5": 1, "Infinity": 2}),
    "by_colour": Row(dict[Colour, int], {Colour.RED: 1}, {"r": 1}),
    "by_level": Row(dict[Level, int], {Level.LOW: 1}, {"1": 1}),
    "by_time": Row(dict[dt.timedelta, int], {dt.timedelta(hours=2): 1}, {"PT2H": 1}),
    "by_pair": Row(dict[tuple[int, str], int], {(1, "a"): 2}, [[[1, "a"], 2]]),
    "by_option": Row(dict[int | None, int], {None: 1, 1: 2}, [[None, 1], [1, 2]]),
}
"""Types of values, by the names of their fields."""

KEYS = {
    "whether": Row(bool, True, True),
    "number": Row(int, 2**53 + 1, 2**53 + 1),
    "text": Row(str, "null", "null"),
    "raw": Row(bytes, b"\x00\xff", "00ff"),
    "day": Row(dt.date, dt.date(2026, 1, 31), "2026-01-31"),
    "instant": Row(
        dt.datetime, dt.datetime(2026, 1, 31, 8, 0, tzinfo=ZONE), "2026-01-31T06:00:00Z"
    ),
    "hours": Row(dt.timedelta, dt.timedelta(hours=26), "P1DT2H"),
    "id": Row(uuid.UUID, uuid.UUID(int=5), str(uuid.UUID(int=5))),
    "colour": Row(Colour, Colour.RED, "r"),
    "named_as_a_value": Row(Colour, Colour.R, "RED"),
    "level": Row(Level, Level.LOW, 1),
    "choice": Row(Literal["a", "b"], "b", "b"),
    "place": Row(Place, Place("oslo", dt.timedelta(hours=2)), ["oslo", "PT2H"]),
    "nothing": Row(str | None, None, None),
    "something": Row(str | None, "null", "null"),
}
"""Types of keys."""

Every = dataclasses.make_dataclass("Every", [(name, row.kind) for name, row in VALUES.items()])
FORM = {name: row.form for name, row in VALUES.items()}


class Start(NamedTuple):
    user: str


@sk.process(key="user")
def keep(start: Start, held: sk.ValueState[Every], wide: sk.ValueState[int]) -> None:  # type: ignore[valid-type]
    held.update(Every(*(row.value for row in VALUES.values())))
    wide.update(2**64 - 1)


def keyed(kind: Any) -> tuple[Any, Any]:
    """A process function with a key of a type, and its record."""

    class Keyed(NamedTuple):
        key: kind

    @sk.process(key="key")
    def count(given: Keyed, one: sk.ValueState[int], by: sk.MapState[kind, int]) -> None:
        one.update(1)
        by[given.key] = 1

    return count, Keyed


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints: one of values, and one with an operator per type of key."""
    homes = {name: tmp_path_factory.mktemp(name) for name in ("values", "keys")}
    Harness(keep, checkpoint=homes["values"]).send(Start("ann"))
    job, given = sk.Job("keys"), dict[str, list[Any]]()
    for name, row in KEYS.items():
        process, record = keyed(row.kind)
        job.source(name, record).process(process, name=f"of_{name}")
        given[name] = [record(row.value)]
    job.run(given, checkpoint=homes["keys"])
    return homes


@pytest.fixture(scope="module")
def address(homes: dict[str, Path]) -> Iterator[str]:
    with server(homes) as address:
        yield address


def statekit(*words: object) -> str:
    done = invoked(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def sql(address: str, job: str, query: str, **how: Any) -> Any:
    answer = httpx.post(f"{address}/sql", json={"job": job, "sql": query, **how}, timeout=60)
    assert answer.status_code == 200, answer.text
    value = answer.json()["value"]
    names = [column["name"] for column in value["columns"]]
    return [dict(zip(names, row, strict=True)) for row in value["rows"]]


def largest(address: str, job: str, operator: str, state: str) -> Any:
    params = {"operator": operator, "state": state}
    answer = httpx.get(f"{address}/{job}/top", params=params, timeout=60)
    return answer.json()["value"]["keys"][0]["key"]


def exported(home: Path, operator: str, state: str) -> Any:
    into = home.parent / f"{home.name}.{operator}.{state}.parquet"
    statekit("export", home, operator, state, "--to", "parquet", "--into", into)
    (row,) = (row for batch in pq.read_table(into).to_batches() for row in decoded_rows(batch))
    return row


def of_feed(home: Path, operator: str, state: str) -> Any:
    (change,) = next(iter(sk.feed(home, operator, state)))
    return change


def test_a_value_has_one_form_in_all_reads(homes: dict[str, Path], address: str) -> None:
    home, place = homes["values"], ("keep", "held")
    with Client(address) as client, sk.Replica(home) as replica:
        row = {"user": "ann", **FORM}
        reads: dict[str, tuple[Callable[[], Any], Any]] = {
            "statekit get": (lambda: json.loads(statekit("get", home, *place, "ann")), FORM),
            "statekit scan": (lambda: json.loads(statekit("scan", home, *place, "--json")), row),
            "statekit sql": (
                lambda: json.loads(statekit("sql", home, "from keep.held", "--to", "json")),
                row,
            ),
            "statekit query": (
                lambda: json.loads(statekit("query", address, "values", *place, "ann")),
                FORM,
            ),
            "statekit export": (lambda: exported(home, *place), row),
            "GET key": (lambda: httpx.get(f"{address}/values/keep/held/ann").json()["value"], FORM),
            "GET keys": (
                lambda: httpx.get(f"{address}/values/keep/held").json()["value"]["items"],
                [["ann", FORM]],
            ),
            "POST /sql": (lambda: sql(address, "values", "from keep.held"), [row]),
            "Client.get": (lambda: client.get("values", *place, "ann").value, FORM),
            "Client.scan": (lambda: list(client.scan("values", *place)), [("ann", FORM)]),
            "sk.Replica": (lambda: replica.get(*place, "ann").value, FORM),
            "sk.feed": (lambda: of_feed(home, *place).value, FORM),
        }
        assert {name: read() for name, (read, _) in reads.items()} == {
            name: expected for name, (_, expected) in reads.items()
        }


def test_ints_beyond_64_bits_are_numbers_in_all_reads(homes: dict[str, Path], address: str) -> None:
    home, place = homes["values"], ("keep", "wide")
    assert json.loads(statekit("get", home, *place, "ann")) == 2**64 - 1
    row = {"user": "ann", "value": 2**64 - 1}
    assert json.loads(statekit("scan", home, *place, "--json", "--wide-ints")) == row
    assert sql(address, "values", "from keep.wide", wide_ints="decimal") == [row]
    assert sql(address, "values", "from keep.wide", wide_ints="text") == [
        {"user": "ann", "value": str(2**64 - 1)}
    ]
    assert httpx.get(f"{address}/values/keep/wide/ann").json()["value"] == 2**64 - 1


@pytest.mark.parametrize("name", KEYS)
def test_a_key_has_one_form_in_all_reads_and_is_found_by_it(
    name: str, homes: dict[str, Path], address: str
) -> None:
    home, form, value = homes["keys"], KEYS[name].form, KEYS[name].value
    as_json = json.dumps(form)
    operator = f"of_{name}"
    one, by = (operator, "one"), (operator, "by")
    optional = name in ("nothing", "something")
    text = form if isinstance(form, str) and not optional else as_json
    shown = {
        "scan": json.loads(statekit("scan", home, *one, "--json"))["key"],
        "map key": json.loads(statekit("scan", home, *by, "--json"))["map_key"],
        "sql": sql(address, "keys", f"from {operator}.one")[0]["key"],
        "export": exported(home, *one)["key"],
        "top": largest(address, "keys", *one),
        "keys": httpx.get(f"{address}/keys/{operator}/one").json()["value"]["items"][0][0],
        "feed": json.loads(msgspec.json.encode(of_feed(home, *one).key)),
    }
    assert shown == dict.fromkeys(shown, form)
    assert json.loads(statekit("get", home, *one, text)) == 1
    assert httpx.get(f"{address}/keys/{operator}/one", params={"key": as_json}).json()["value"] == 1
    with Client(address) as client:
        assert client.get("keys", *one, value).value == 1
        assert client.get_text("keys", *one, text).value == 1


def test_types_of_sql_that_no_state_has_are_iso_8601(address: str) -> None:
    query = """select interval '14 months -1 hour' as months, time '06:00:00' as time,
        timestamp '2026-01-31 06:00:00' as local, 1.50::decimal(10, 2) as price,
        2::hugeint * 2 as wide, row(1, 2) as parts, {'_1': 1} as named"""
    assert sql(address, "values", query) == [
        {
            "months": "P14MT-1H",
            "time": "06:00:00",
            "local": "2026-01-31T06:00:00",
            "price": "1.50",
            "wide": 4,
            "parts": {"element1": 1, "element2": 2},
            "named": {"_1": 1},
        }
    ]
