"""Whatever a record holds is kept on Spark as in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import pydantic
import pytest

import statekit as sk
from tests.support.effort import SOAK
from tests.support.record_kinds import (
    Aliased,
    Changing,
    ChangingStruct,
    Deriving,
    Filled,
    FrozenSlots,
    Keys,
    OnTheWire,
    OwnConstructor,
    OwnTuple,
    Plain,
    PydanticDataclass,
    Validating,
    content,
    made,
)
from tests.support.spark_runs import Runs

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Note(pydantic.BaseModel):
    text: str = ""
    stars: int = 1


class Visit(pydantic.BaseModel):
    user: str
    note: Note = pydantic.Field(default_factory=Note)
    notes: list[Note]
    page: str | None = None


# All others are read by their constructor, as each runtime does it.
ALL_KINDS: tuple[Any, ...] = (
    *(Plain, FrozenSlots, Filled, Changing, Deriving, OwnConstructor, OwnTuple),
    *(OnTheWire, ChangingStruct, Validating, Aliased, PydanticDataclass, Keys),
)
KINDS = ALL_KINDS if SOAK else (OwnConstructor, ChangingStruct, Validating, Keys)


class Go(NamedTuple):
    user: str


def writing(cls: Any) -> Any:
    def write(event: Go, held: Any) -> Iterator[Any]:
        held.update(made(cls))
        yield held.get()

    write.__annotations__ = {
        "event": Go,
        "held": cast("Any", sk.ValueState)[cls],
        "return": cast("Any", Iterator)[cls],
    }
    return sk.process(key="user")(write)


def reading(cls: Any) -> Any:
    def read(event: Any, times: Any) -> Iterator[str]:
        yield repr(content(event))

    read.__annotations__ = {"event": cls, "times": sk.ValueState[int], "return": Iterator[str]}
    return sk.process(key="score")(read)


def kept_job() -> sk.Job:
    """Each kind on its way to an operator of another key, through transforms, and collected."""
    job = sk.Job("kept")
    going = job.source("go", Go)
    for cls in KINDS:
        name = cls.__name__.lower()
        emitted = going.process(writing(cls), name=f"write_{name}")
        filtered = emitted.filter(lambda one: True, name=f"filter_{name}")
        mapped = emitted.map(lambda one: one, into=cls, name=f"map_{name}")
        for way, stream in (("edge", emitted), ("filtered", filtered), ("mapped", mapped)):
            stream.process(reading(cls), name=f"read_{way}_{name}").sink(f"{name}_{way}")
        collected = emitted.aggregate(key="score", name=f"all_{name}", held=sk.Collect())
        collected.map(lambda one: repr(content(one.held[0])), into=str, name=f"shown_{name}").sink(
            f"{name}_collected"
        )
    return job


def test_records_of_all_kinds_keep_all_that_they_hold(runs: Runs) -> None:
    job, found = kept_job(), dict[str, list[str]]()

    def collect(name: str) -> Any:
        def write(out: Any, epoch: int) -> None:
            found[name] = [row[0] for row in out.collect()]

        return write

    outputs = {sink.name: collect(sink.name) for sink in job.plan.sinks}
    runs.feed("go", [{"user": "ann"}])
    df = runs.spark.read.parquet(str(runs.home / "go"))
    runs.finish(job, {"go": df}, outputs=outputs, parallelism=2)
    in_process = kept_job().run({"go": [Go("ann")]})
    for cls in KINDS:
        for way in ("edge", "filtered", "mapped", "collected"):
            name, expected = f"{cls.__name__.lower()}_{way}", [repr(content(made(cls)))]
            assert (name, in_process[name]) == (name, expected)
            assert (name, found[name]) == (name, expected)


def sets_of(visit: Visit) -> str:
    """Return which fields of a model, and of those inside it, count as set."""
    models = (visit, visit.note, *visit.notes)
    return " ".join(",".join(sorted(model.model_fields_set)) for model in models)


@sk.process(key="user")
def keep(visit: Visit, kept: sk.ListState[Visit]) -> Iterator[Visit]:
    kept.append(visit)
    yield from kept


def visits_job() -> sk.Job:
    job = sk.Job("visits")
    visits = job.source("visits", Visit)
    visits.map(sets_of, into=str, name="of_source").sink("source")
    visits.process(keep).map(sets_of, into=str, name="of_state").sink("state")
    return job


def test_all_fields_of_a_model_count_as_set_also_if_a_frame_lacks_their_columns(runs: Runs) -> None:
    found = dict[str, list[str]]()
    given: dict[str, Any] = {"user": "ann", "notes": [{"text": "a"}]}

    def collect(name: str) -> Any:
        return lambda out, epoch: found.update({name: [row[0] for row in out.collect()]})

    outputs = {name: collect(name) for name in ("source", "state")}
    df = runs.spark.createDataFrame([given], "user string, notes array<struct<text: string>>")
    runs.finish(visits_job(), {"visits": df}, outputs=outputs, parallelism=1)
    expected = ["note,notes,page,user stars,text stars,text"]
    assert found == {"source": expected, "state": expected}
    assert dict(visits_job().run({"visits": [given]}).outputs) == found
