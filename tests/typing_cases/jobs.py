"""Jobs: streams carry types, and a function fits a stream or does not."""

from collections.abc import Iterator
from typing import NamedTuple

import statekit as sk
from statekit.testing import Harness, states


class Flight(NamedTuple):
    tail: str


class Landing(NamedTuple):
    airport: str


@sk.process(key="tail")
def land(flight: Flight, seen: sk.ValueState[int]) -> Iterator[Landing]:
    yield Landing("JFK")


@sk.process(key="airport")
def count(landing: Landing, seen: sk.ValueState[int]) -> list[tuple[str, int]]:
    return [(landing.airport, 1)]


@sk.process(key=("airport",))
def silent(landing: Landing) -> None: ...


@sk.process(key="tail")
def landings_of(flights: Iterator[Flight], seen: sk.ValueState[int]) -> Iterator[Landing]:
    for _ in flights:
        yield Landing("JFK")


job = sk.Job("fleet", key_groups=64)
flights: sk.Stream[Flight] = job.source("flights", Flight)
landings: sk.Stream[Landing] = flights.process(land, name="landings")
counts: sk.Stream[tuple[str, int]] = landings.process(count).sink("counts")
landings.process(silent)
of_tails: sk.Stream[Landing] = flights.process(landings_of)
landings.process(landings_of)  # error: incompatible type
landings_of(Flight("N1"), **states(landings_of, "N1"))  # error: incompatible type "Flight"
run = job.run({"flights": [Flight("N1")]}, parallelism=2)
epochs: int = run.epochs
found: list[tuple[str, int]] = run[counts]
also_found: list[object] = run["counts"]
not_found: list[Landing] = run[counts]  # error: expected type "Stream[Landing]"
print(run["counts"][0].airport)  # error: "object" has no attribute "airport"
run[5]  # error: No overload variant
job.run({"flights": []}, parallelismm=2)  # error: Unexpected keyword argument "parallelismm"
job.run({"flights": 5})  # error: Dict entry 0 has incompatible type
job.run({}, outputs={"counts": print, "raw": lambda records: None})  # error: Cannot infer type

flights.process(count)  # error: incompatible type
landings.process(land)  # error: incompatible type
counts.process(count)  # error: incompatible type
landings.process(silent).process(count)  # error: incompatible type
flights.process(len)  # error: incompatible type
wrong: sk.Stream[Flight] = landings.process(count)  # error: incompatible type
job.source("other", "Flight")  # error: No overload variant
sk.Job()  # error: Missing positional argument "name"
sk.Job("fleet", key_groups="many")  # error: incompatible type "str"
sk.process("tail")  # error: expected "Never"
sk.process(key=5)  # error: incompatible type "int"


@sk.process(key="tail")  # error: incompatible type
def one_output(flight: Flight, seen: sk.ValueState[int]) -> int:
    return 5


@sk.process(key="tail")  # error: incompatible type
def no_parameters() -> None: ...


harness = Harness(land, parallelism=2, backend="rocksdb")
landed: list[Landing] = harness.send(Flight("N1"))
print(harness.send(Flight("N1"))[0].airprt)  # error: "Landing" has no attribute "airprt"
harness.send(Flight("N1"), {"tail": "N2"})
given = states(land, "N1")
land(Flight("N1"), **given)
land(Flight("N1"), given["seen"])
land(Landing("JFK"), **given)  # error: incompatible type "Landing"; expected "Flight"
land(Flight("N1"), 5)  # error: incompatible type "int"; expected "ValueState[int]"
land(Flight("N1"))  # error: Missing positional argument "seen"
Harness(land, backend="disk")  # error: No overload variant of "Harness"
Harness(len)  # error: No overload variant of "Harness"
