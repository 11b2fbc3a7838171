# ruff: noqa: B018, F841 - wrong on purpose
"""States in the hands of a user: what fits and what does not."""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import statekit as sk


class Flight(NamedTuple):
    tail: str
    delay: int


@sk.process(key="tail")
def good(
    flight: Flight,
    ctx: sk.Context,
    last: sk.ValueState[Flight],
    delays: sk.ListState[int],
    by_day: sk.MapState[str, int],
    most: Annotated[sk.ReducingState[int], sk.Reduce(max)],
    average: Annotated[
        sk.AggregatingState[int, tuple[int, int], float],
        sk.Aggregate(
            create=lambda: (0, 0),
            add=lambda held, added: (held[0] + added, held[1] + 1),
            result=lambda held: held[0] / held[1],
        ),
    ],
) -> Iterator[Flight]:
    previous = last.get()
    if previous is not None:
        yield previous
    last.update(flight)
    last.value = flight
    delays.append(flight.delay)
    delays.extend([1, 2])
    delays.update(delay for delay in delays if delay > 0)
    total: int = sum(delays) + delays[0] + sum(delays[1:])
    by_day["mon"] = by_day.get("mon", 0) + total
    for day, count in by_day.items():
        by_day[day] = count + len(by_day)
    for day, count in by_day.scan("a", None):
        by_day.pop(day, count)
    most.add(flight.delay)
    average.add(flight.delay)
    mean: float | None = average.get()
    if mean is not None and (most.get() or 0) > mean and last.exists():
        last.clear()


@sk.process(key="tail")
def bad(
    flight: Flight,
    last: sk.ValueState[Flight],
    delays: sk.ListState[int],
    by_day: sk.MapState[str, int],
    most: Annotated[sk.ReducingState[int], sk.Reduce(max)],
    average: sk.AggregatingState[int, tuple[int, int], float],
) -> Iterator[Flight]:
    last.update("text")  # error: incompatible type "str"; expected "Flight"
    last.update(None)  # error: incompatible type "None"; expected "Flight"
    last.value = 5  # error: Incompatible types in assignment
    last.get().delay  # error: Item "None" of "Flight | None" has no attribute "delay"
    most.get() + 1  # error: Unsupported operand types for + ("None" and "int")
    average.get() * 2  # error: Unsupported operand types for * ("None" and "int")
    delays.append("text")  # error: incompatible type "str"; expected "int"
    delays.extend(["text"])  # error: has incompatible type "str"; expected "int"
    delays.update([None])  # error: has incompatible type "None"; expected "int"
    delays[0] = 5  # error: Unsupported target for indexed assignment
    delays["0"]  # error: No overload variant of "__getitem__"
    by_day[5] = 5  # error: Invalid index type "int"
    by_day["mon"] = "text"  # error: Incompatible types in assignment
    by_day.scan(5, None)  # error: incompatible type "int"; expected "str | None"
    by_day.get("mon") + 1  # error: Unsupported operand types for + ("None" and "int")
    most.add("text")  # error: incompatible type "str"; expected "int"
    average.add("text")  # error: incompatible type "str"; expected "int"
    text: str | None = average.get()  # error: Incompatible types in assignment
    most.update(5)  # error: "ReducingState[int]" has no attribute "update"
    yield "text"  # error: Incompatible types in "yield"
