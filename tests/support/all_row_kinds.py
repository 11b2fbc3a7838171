"""Process functions that keep rows of every kind, and what may be done to them."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.maintenance.rewrite import RowChecksum, stored_rows
from statekit.testing import Harness

START = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
KEYS = ["", "a", "b", "a\x00b", "ü", "a" * 40]


class Step(NamedTuple):
    key: str
    n: int
    at: dt.datetime


Told = tuple[str, str, Any]
Total = Annotated[sk.ReducingState[int], sk.Reduce(sum)]
Seen = Annotated[sk.ListState[int], sk.TTL("1 minute", clock="event")]


@sk.process(key="key", event_time="at", lateness="30 seconds")
def keep(
    step: Step,
    ctx: sk.Context,
    last: sk.ValueState[Step],
    brief: Annotated[sk.ValueState[int], sk.TTL("1 minute", clock="event")],
    seen: Annotated[sk.ListState[int], sk.TTL("2 minutes")],
    by_n: Annotated[sk.MapState[int, str], sk.TTL("3 minutes", refresh="read")],
    total: Total,
) -> Iterator[Told]:
    yield step.key, "before", (brief.get(), list(seen), dict(by_n.items()), total.get())
    last.update(step)
    brief.update(step.n)
    seen.append(step.n)
    by_n[step.n % 3] = str(step.n)
    total.add(step.n)
    if step.n % 5 == 0:
        by_n.clear()
    ctx.timers.set(step.at + dt.timedelta(seconds=step.n), f"t{step.n % 2}")
    ctx.timers.set(START + dt.timedelta(seconds=7 * step.n), clock="processing")
    if step.n % 7 == 0:
        last.clear()


@keep.on_timer
def rang(timer: sk.Timer, ctx: sk.Context[str], total: Total) -> Iterator[Told]:
    yield ctx.key, timer.name, (timer.at, timer.clock, total.get())


@sk.process(key="key", event_time="at", lateness="30 seconds", ordered=True)
def keep_in_order(step: Step, ctx: sk.Context, seen: Seen) -> Iterator[Told]:
    seen.append(step.n)
    ctx.timers.set(step.at + dt.timedelta(seconds=10))
    yield step.key, "seen", (step.at, list(seen))


@keep_in_order.on_timer
def rang_in_order(timer: sk.Timer, ctx: sk.Context[str], seen: Seen) -> Iterator[Told]:
    yield ctx.key, "rang", (timer.at, list(seen))


PROCESSES = [keep, keep_in_order]


def epochs(most: int = 5) -> st.SearchStrategy[list[list[Step]]]:
    """Records of some epochs, more or less in order of time."""
    steps = st.builds(
        lambda key, n, late: (key, n, late),
        st.sampled_from(KEYS),
        st.integers(0, 20),
        st.integers(0, 40),
    )
    return st.lists(st.lists(steps, max_size=6), min_size=1, max_size=most).map(
        lambda given: [
            [
                Step(key, n, START + dt.timedelta(seconds=25 * number - late))
                for key, n, late in records
            ]
            for number, records in enumerate(given)
        ]
    )


def run(harness: Harness, number: int, records: Sequence[Step]) -> Counter[str]:
    """One epoch, with time going on. Outputs of different keys come in any order."""
    put_out = harness.advance_processing_time(START + dt.timedelta(seconds=20 * number + 20))
    put_out += harness.send(*records)
    return Counter(json.dumps(told, default=str) for told in put_out)


def held(harness: Harness) -> dict[str, Any]:
    """All that the keys of a harness hold."""
    states = [spec.name for spec in harness.process.states]
    return {
        key: ({name: harness.state(name, key) for name in states}, list(harness.timers(key)))
        for key in KEYS
    }


def stored(repository: Repository) -> dict[str, str]:
    """Rows and checksum of each family after the last epoch."""
    latest = repository.latest_epoch()
    assert latest is not None
    manifest = repository.manifest(latest)
    (operator,) = repository.job_file(manifest.job_file.path).operators
    contents = {name: RowChecksum() for name in operator.holds}
    for family, parts, row in stored_rows(repository, operator, manifest):
        contents[family].add(parts.before + parts.key + parts.after, row)
    return {name: str(content) for name, content in contents.items()}


def reopened(harness: Harness, parallelism: int | None) -> Harness:
    """The same harness, with the shards and the key groups that its checkpoint has now."""
    harness._job.plan.key_groups = None
    harness._runner = harness._start(parallelism)
    return harness
