"""How `layouts` was made: `python -m tests.stored.recipe_layouts DIRECTORY`.

A small job with rows of every kind, its records, and what was done to its checkpoint, so that of
three shards one has a base, one a history and one slices.
"""

from __future__ import annotations

import datetime as dt
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.repository import Repository
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.uploader import uploader

__all__ = ["BASES", "ENDS", "GIVEN", "MORE", "Move", "build_job", "make", "run"]

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
DAY_US = 86_400_000_000

BASES = BaseOptions(replay_seconds=0, uploaded_per_changed=100)
"""A base as soon as one was uploaded."""

NO_BASES = BaseOptions(bases=False)


class Move(NamedTuple):
    account: str
    at: dt.datetime
    cents: int


class Told(NamedTuple):
    account: str
    what: str
    number: int


Lately = Annotated[sk.ValueState[int], sk.TTL("2 hours", clock="event")]
ByHour = Annotated[sk.MapState[int, int], sk.TTL("2 days")]
Recent = Annotated[sk.OperatorListState[int], sk.Redistribute("even")]


@sk.process(key="account", event_time="at", lateness="1 hour")
def ledger(
    move: Move,
    ctx: sk.Context,
    cents: sk.ListState[int],
    lately: Lately,
    by_hour: ByHour,
    recent: Recent,
) -> Iterator[Told]:
    cents.append(move.cents)
    lately.update((lately.get() or 0) + 1)
    by_hour[move.at.hour] = by_hour.get(move.at.hour, 0) + move.cents
    recent.append(move.cents)
    ctx.timers.set(move.at + 6 * HOUR, name="quiet")
    ctx.timers.set(dt.datetime(2030, 1, 1, tzinfo=dt.UTC), name="review", clock="processing")
    yield Told(move.account, "sum", sum(cents))
    yield Told(move.account, "lately", lately.get() or 0)


@ledger.on_timer
def ledger_timer(timer: sk.Timer, ctx: sk.Context[str], cents: sk.ListState[int]) -> Iterator[Told]:
    yield Told(ctx.key, timer.name or "", sum(cents))


@sk.process(key="account", event_time="at", lateness="1 hour", ordered=True)
def in_order(move: Move, due: sk.ValueState[int]) -> Iterator[Told]:
    due.update((due.get() or 0) + move.cents)
    yield Told(move.account, "due", due.get() or 0)


def build_job() -> sk.Job:
    job = sk.Job("shop", key_groups=16)
    moves = job.source("moves", Move)
    moves.process(ledger).sink("told")
    moves.process(in_order).sink("ordered")
    return job


# Of three shards, the first has 0, 5, 7 and 11, the second 1 and 2, and the third 9 and 10.
_ACCOUNTS = [*[0, 1, 2, 5, 9, 10] * 3, *[0, 1, 2, 5, 1, 2], *[0, 5, 0, 7, 0, 11]]
GIVEN = [
    Move(f"acc-{account}", NOON + number * HOUR / 12, 100 * number + 5)
    for number, account in enumerate(_ACCOUNTS)
]
ENDS = (6, 12, 18, 24, 26, 28, 30)
"""How many of them each epoch went up to that took some."""

MORE = [Move(f"acc-{number % 12}", NOON + (4 + number) * HOUR, 10 * number) for number in range(18)]


def run(directory: Path, moves: list[Move], **options: Any) -> dict[str, list[Any]]:
    """Run the job over these records, from where the checkpoint stands; what it puts out."""
    made = build_job().run(
        {"moves": moves},
        checkpoint=directory,
        epoch_size=6,
        drain=False,
        clock=lambda: DAY_US,
        **options,
    )
    return made.outputs


def make(directory: Path) -> None:
    """Epochs 0 to 7 and the savepoint `s` of the last one; those before it were given up."""
    with tempfile.TemporaryDirectory() as home:
        on_disk: dict[str, Any] = {"backend": "rocksdb", "working_directory": home}
        for end in ENDS[:3]:  # 0 to 2: both shards are on bases
            run(directory, GIVEN[:end], parallelism=2, bases=BASES, **on_disk)
            assert uploader().drain(60)
        rescale_offline(Repository(directory), 3, job=build_job())  # 3: three shards of slices
        run(directory, GIVEN[: ENDS[3]], bases=NO_BASES, **on_disk)  # 4: two of them with histories
        for end in ENDS[4:]:  # 5 to 7: one of them on a base
            run(directory, GIVEN[:end], bases=BASES, **on_disk)
            assert uploader().drain(60)
    repository = Repository(directory)
    Collector(repository, sk.Retention(epochs=1), grace=dt.timedelta(0)).collect(sweep=True)
    write_savepoint(repository, "s")


def main() -> None:
    make(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
