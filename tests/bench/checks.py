"""How many histories `check` tries in a minute: each with a plain and a disturbed run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.testing.properties import PROPERTIES, Property
from statekit.testing.subject import History, Subject
from tests.bench.report import Row

WANTED, HISTORIES = 1_000, 400
COMPARED = ("repeats", "restarts", "replays", "faults", "parallelism", "rescaling")


class Order(NamedTuple):
    customer: str
    cents: int


@sk.process(key="customer")
def spent(
    order: Order, total: sk.ValueState[int], by_cents: sk.MapState[int, int]
) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    by_cents[order.cents] = by_cents.get(order.cents, 0) + 1
    yield total.get() or 0


def rates() -> list[Row]:
    subject = Subject(spent)
    seconds = {each.name: _seconds(subject, each) for each in PROPERTIES if each.name in COMPARED}
    slowest = max(seconds, key=seconds.__getitem__)
    mean = sum(seconds.values()) / len(seconds)
    result = (
        f"{60 * HISTORIES / mean:,.0f} a minute of one core; "
        f"{60 * HISTORIES / seconds[slowest]:,.0f} with {slowest}, which takes longest"
    )
    what = "check: histories of a small function, each with a plain run and a disturbed one"
    return [Row(what, result, f"{WANTED:,}", ratio=HISTORIES * 60 / mean / WANTED)]


def _seconds(subject: Subject, each: Property) -> float:
    """The CPU seconds that a property takes for its histories, drawing them included."""

    @settings(
        max_examples=HISTORIES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(st.tuples(each.arguments(), subject.histories()))
    def tried(drawn: tuple[Any, History]) -> None:
        argument, history = drawn
        assert each.find(subject, history, argument) is None

    begun = time.process_time()
    tried()
    return time.process_time() - begun


BENCHMARKS = {"checks": rates}
