"""A job whose state and outputs are easy to compute without statekit."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import statekit as sk
from statekit.backend.interface import Backend, MemoryBackend
from statekit.checkpoint.repository import Repository
from statekit.runtime.coordinator import Coordinator
from statekit.testing import Harness
from statekit.working_copy.copies import WorkingCopies
from tests.support.loaded_rows import load

Rows = dict[str, dict[bytes, bytes]]
Plain = dict[str, dict[str, Any]]

STATES = ("total", "seen", "parity")
ALL_KEYS = (b"", b"\xff" * 4)


@dataclass
class Entry:
    key: str
    n: int


@sk.process(key="key")
def tally(
    entry: Entry, total: sk.ValueState[int], seen: sk.ListState[int], parity: sk.MapState[str, int]
) -> Iterator[tuple[str, int]]:
    total.update((total.get() or 0) + entry.n)
    seen.append(entry.n)
    if entry.n % 7 == 0:
        seen.clear()
    side = "odd" if entry.n % 2 else "even"
    parity[side] = parity.get(side, 0) + 1
    if entry.n % 11 == 0:
        parity.clear()
    yield entry.key, total.get() or 0


def tally_job(key_groups: int | None = None) -> sk.Job:
    """As `Harness(tally)` makes it, so that a harness can open its checkpoints."""
    job = sk.Job("tally", key_groups=key_groups)
    job.source("records", Entry).process(tally).sink("outputs")
    return job


def entries(epoch: int, count: int, keys: int = 12) -> list[Entry]:
    """The records of an epoch: always the same for the same number."""
    chosen = random.Random(epoch)
    return [Entry(f"k{chosen.randrange(keys)}", chosen.randrange(100)) for _ in range(count)]


def plain_state(records: Iterable[Entry]) -> Plain:
    """What the states hold after these records, per key, by plain Python."""
    states: Plain = {}
    for record in records:
        found = states.setdefault(record.key, {"total": 0, "seen": [], "parity": {}})
        found["total"] += record.n
        found["seen"] = [] if record.n % 7 == 0 else [*found["seen"], record.n]
        side = "odd" if record.n % 2 else "even"
        found["parity"][side] = found["parity"].get(side, 0) + 1
        if record.n % 11 == 0:
            found["parity"] = {}
    return states


def plain_outputs(records: Iterable[Entry]) -> list[tuple[str, int]]:
    """What the function puts out for each record, in the order of the records."""
    totals: dict[str, int] = {}
    outputs: list[tuple[str, int]] = []
    for record in records:
        totals[record.key] = totals.get(record.key, 0) + record.n
        outputs.append((record.key, totals[record.key]))
    return outputs


def state_of(harness: Harness, keys: Iterable[str]) -> Plain:
    return {key: {name: harness.state(name, key) for name in STATES} for key in keys}


def rows_of(backend: Backend, states: Sequence[str] = STATES) -> Rows:
    return {state: dict(backend.scan(state, *ALL_KEYS)) for state in states}


def comparable(rows: Rows) -> dict[str, Any]:
    """Rows as they are in every run that did the same.

    Positions of list elements are numbered within a shard, so only their order is comparable.
    """
    lists: dict[bytes, list[bytes]] = {}
    for key, element in sorted(rows["seen"].items()):
        lists.setdefault(key[:-12], []).append(element)
    return {**rows, "seen": lists}


def committed_rows(repository: Repository, key_groups: int) -> Rows:
    """Everything that the last manifest names, replayed."""
    backend = MemoryBackend(STATES)
    load(repository, backend, "tally", 0, key_groups - 1, repository.latest_epoch())
    return rows_of(backend)


def copied_rows(coordinator: Coordinator, copies: WorkingCopies) -> Rows:
    """Everything that the working copies of all shards hold."""
    found: Rows = {state: {} for state in STATES}
    for plan in coordinator.plans("tally"):
        copy = copies.obtain(plan, STATES, coordinator.repository)
        for state, rows in rows_of(copy.backend).items():
            found[state] |= rows
        copy.close_at(plan.base)
    return found
