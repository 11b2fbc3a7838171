"""A script as a user writes it, with every class in `__main__`: only by value can they be sent.

Run by `test_shipping.py`. Annotations are strings here (the line below), as in many scripts.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pydantic

import statekit as sk
from tests.support.spark_runs import new_session, parquet_rows, state_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Base(msgspec.Struct, frozen=True):
    word: str


class Line(Base, frozen=True, tag="line", rename="camel"):
    """Inherits, renames, is tagged and frozen, and has defaults of both kinds."""

    line_number: int
    seen_at: dt.datetime = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    colours: list[Colour] = msgspec.field(default_factory=list)

    @classmethod
    def make(cls, word: str) -> Line:
        return Line(word, 0)

    def loud(self) -> Line:
        return Line(self.word.upper(), self.line_number, colours=[Colour.RED])


class Options(msgspec.Struct, kw_only=True, omit_defaults=True):
    factor: int = 2
    line: Line

    def __post_init__(self) -> None:
        if self.factor < 0:
            raise ValueError("a factor is not negative")


class Node(msgspec.Struct):
    value: int
    children: list[Node] = []


@dataclasses.dataclass(frozen=True)
class Data:
    word: str
    line_number: int
    when: dt.datetime | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


class Model(pydantic.BaseModel):
    word: str
    line_number: int
    when: dt.datetime | None = None

    @pydantic.field_validator("word")
    @classmethod
    def stripped(cls, value: str) -> str:
        return value.strip()


class Tuple(NamedTuple):
    word: str
    line_number: int
    when: dt.datetime | None = None


class Typed(TypedDict):
    word: str
    line_number: int


@sk.process(key="word")
def structs(line: Line, last: sk.ValueState[Options], tree: sk.ValueState[Node]) -> Iterator[Line]:
    before = last.get()
    factor = before.factor + 1 if before else 2
    last.update(Options(factor=factor, line=line.loud()))
    tree.update(Node(factor, [Node(1, [Node(2)])]))
    held = last.get()
    assert held is not None
    assert isinstance(held.line, Line), "one class, not two of them with one name"
    yield Line(Line.make(held.line.word).word, held.factor, colours=held.line.colours)


@sk.process(key="word")
def datas(data: Data, last: sk.ValueState[Data]) -> Iterator[Data]:
    before = last.get()
    last.update(data)
    yield dataclasses.replace(data, line_number=before.line_number if before else -1)


@sk.process(key="word")
def models(model: Model, last: sk.ValueState[Model]) -> Iterator[Model]:
    before = last.get()
    last.update(model)
    yield model.model_copy(update={"line_number": before.line_number if before else -1})


@sk.process(key="word")
def tuples(row: Tuple, last: sk.ListState[Tuple]) -> Iterator[Tuple]:
    last.append(row)
    yield row._replace(line_number=len(last))


@sk.process(key="word")
def typed(row: Typed, last: sk.MapState[str, Typed]) -> Iterator[Typed]:
    last[row["word"]] = row
    yield {"word": row["word"], "line_number": len(last)}


def highest(one: int, other: int) -> int:
    return max(one, other)


@sk.process(key="word")
def plain(
    row: dict[str, Any], most: Annotated[sk.ReducingState[int], sk.Reduce(highest)]
) -> Iterator[tuple[str, int]]:
    most.add(row["line_number"])
    yield row["word"], most.get() or 0


DECLARED: list[tuple[Any, sk.Process[Any, Any, Any]]] = [
    (Line, structs),
    (Data, datas),
    (Model, models),
    (Tuple, tuples),
    (Typed, typed),
    (dict, plain),
]


def main() -> None:
    home = Path(sys.argv[1])
    spark = new_session(home / "tmp")
    job = sk.Job("main")
    # msgspec keeps a cache on classes that it has looked at, which cannot be pickled.
    msgspec.json.decode(b'{"word": "a", "line_number": 1}', type=Data)
    msgspec.json.decode(b'{"word": "a", "line_number": 1}', type=Typed)
    msgspec.convert(["a", 1], Tuple)
    for number, (record, declared) in enumerate(DECLARED):
        stream = job.source(f"source{number}", record).process(declared)
        stream.sink(declared.name)
    rows = [{"word": "a", "line_number": 1}, {"word": "a", "line_number": 2}]
    df = spark.createDataFrame(
        [tuple(row.values()) for row in rows], "word string, line_number long"
    )
    job.start(
        spark,
        {source.name: df for source in job.plan.sources},
        outputs={d.name: sk.sinks.parquet(home / "out" / d.name) for _, d in DECLARED},
        checkpoint=home / "checkpoint",
        working_directory=home / "working",
    )
    records = {s.name: [s.record_type.cls(**row) for row in rows] for s in job.plan.sources}
    expected = job.run(records)
    for _, declared in DECLARED:
        assert declared.output_type is not None
        found = parquet_rows(home / "out" / declared.name)
        same = declared.output_type.to_batch(expected[declared.name]).to_pylist()
        print(declared.name, "same" if found == same and found else f"{found}, not {same}")
    print(state_of(home / "checkpoint", "structs", "last", home / "tmp"))
    spark.stop()


if __name__ == "__main__":
    main()
