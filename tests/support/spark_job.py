"""A small job that notices everything: lost, repeated and reordered records, and foreign state.

With it comes the same computation over plain dicts, which shares nothing with statekit.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import statekit as sk


class Event(NamedTuple):
    word: str
    number: int


EVENT_SCHEMA = "word string, number bigint"


class Counted(NamedTuple):
    """How a word stood when it met a number."""

    word: str
    number: int
    seen: int
    before: int | None


class Sum(NamedTuple):
    digit: int
    total: int


@sk.process(key="word")
def count(
    event: Event,
    seen: sk.ValueState[int],
    numbers: sk.ListState[int],
    digits: sk.MapState[int, int],
    most: Annotated[sk.ReducingState[int], sk.Reduce(max)],
) -> Iterator[Counted]:
    """Each record's output tells the one before it: any change of order is seen."""
    before = numbers[-1] if len(numbers) else None
    seen.update((seen.get() or 0) + 1)
    numbers.append(event.number)
    digit = event.number % 10
    digits[digit] = digits.get(digit, 0) + 1
    most.add(event.number)
    yield Counted(event.word, event.number, seen.get() or 0, before)


class Digit(NamedTuple):
    digit: int
    number: int


@sk.process(key="word")
def to_digit(event: Event, seen: sk.ValueState[int]) -> Iterator[Digit]:
    seen.update((seen.get() or 0) + 1)
    yield Digit(event.number % 10, event.number)


@sk.process(key="digit")
def sums(digit: Digit, total: sk.ValueState[int]) -> Iterator[Sum]:
    total.update((total.get() or 0) + digit.number)
    yield Sum(digit.digit, total.get() or 0)


def counting_job(**options: Any) -> sk.Job:
    job = sk.Job("counting", **options)
    job.source("events", Event).process(count).sink("counted")
    return job


def chained_job() -> sk.Job:
    """Two operators that are keyed differently; the second is fed by the first."""
    job = sk.Job("chained")
    job.source("events", Event).process(to_digit).process(sums).sink("sums")
    return job


def events(seed: int, size: int, words: int = 12) -> list[Event]:
    """Some words are frequent, some are rare."""
    chosen = random.Random(seed)
    return [
        Event(f"w{int(words * chosen.random() ** 2)}", chosen.randrange(1000)) for _ in range(size)
    ]


def counted(given: Iterable[Event]) -> tuple[list[Counted], dict[str, dict[str, Any]]]:
    """Outputs, and the states `seen`, `numbers`, `digits` and `most`, in plain Python."""
    held: dict[str, list[int]] = defaultdict(list)
    outputs = []
    for word, number in given:
        before = held[word][-1] if held[word] else None
        held[word].append(number)
        outputs.append(Counted(word, number, len(held[word]), before))
    digits: dict[str, dict[Any, int]] = {}
    for word, numbers in held.items():
        found: dict[Any, int] = defaultdict(int)
        for number in numbers:
            found[number % 10] += 1
        digits[word] = dict(found)
    return outputs, {
        "seen": {word: len(numbers) for word, numbers in held.items()},
        "numbers": dict(held),
        "digits": digits,
        "most": {word: max(numbers) for word, numbers in held.items()},
    }


def by_word(rows: Iterable[Any]) -> dict[str, list[Any]]:
    """Outputs per word, in order: between words there is no order."""
    found: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        values = Counted(**row) if isinstance(row, dict) else Counted(*row)
        found[values.word].append(values)
    return dict(found)
