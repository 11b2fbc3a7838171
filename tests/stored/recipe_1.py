"""How `format-1` was made: `python -m tests.stored.recipe_1 DIRECTORY`, with the code of format 1.

What lives here: a job with every kind of state that format 1 had, and the records it was given.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import statekit as sk

__all__ = ["HOUR", "NOON", "RECORDS", "Account", "Move", "Seen", "build_job", "main", "make"]

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
DAY_US = 86_400_000_000


class Move(NamedTuple):
    account: str
    at: dt.datetime
    cents: int
    tag: str | None


class Account(NamedTuple):
    owner: str
    moves: int = 0


class Seen(NamedTuple):
    account: str
    balance: int
    waits: bool


MEAN: sk.Aggregate[int, tuple[int, int], float] = sk.Aggregate(
    create=lambda: (0, 0),
    add=lambda held, cents: (held[0] + cents, held[1] + 1),
    result=lambda held: held[0] / held[1],
)


@sk.process(key="account", event_time="at", lateness="1 hour")
def ledger(
    move: Move,
    ctx: sk.Context,
    account: sk.ValueState[Account],
    cents: sk.ListState[int],
    by_tag: sk.MapState[str, int],
    largest: Annotated[sk.ReducingState[int], sk.Reduce(max)],
    mean: Annotated[sk.AggregatingState[int, tuple[int, int], float], MEAN],
    lately: Annotated[sk.ValueState[int], sk.TTL("2 hours", clock="event")],
) -> Iterator[Seen]:
    known = account.get() or Account(move.account.upper())
    account.update(known._replace(moves=known.moves + 1))
    cents.append(move.cents)
    if move.tag is not None:
        by_tag[move.tag] = by_tag.get(move.tag, 0) + move.cents
    largest.add(move.cents)
    mean.add(move.cents)
    lately.update((lately.get() or 0) + 1)
    ctx.timers.set(move.at + 6 * HOUR, name="quiet")
    yield Seen(move.account, sum(cents), False)


@ledger.on_timer("quiet")
def quiet(timer: sk.Timer, ctx: sk.Context, cents: sk.ListState[int]) -> Iterator[Seen]:
    yield Seen(ctx.key, sum(cents), True)


@sk.process(key=("account", "tag"), event_time="at", lateness="1 hour", ordered=True)
def in_order(move: Move, total: sk.ValueState[int]) -> Iterator[Seen]:
    total.update((total.get() or 0) + move.cents)
    yield Seen(move.account, total.get() or 0, False)


def build_job() -> sk.Job:
    """Two operators over one source."""
    job = sk.Job("books", key_groups=16)
    moves = job.source("moves", Move)
    moves.process(ledger).sink("seen")
    moves.process(in_order).sink("ordered")
    return job


RECORDS = [
    Move(f"acc-{n % 7}", NOON + n * HOUR / 4, 100 * n - 150, None if n % 3 == 0 else f"tag{n % 3}")
    for n in range(24)
]


def make(directory: Path, records: list[Move] = RECORDS) -> dict[str, list[Seen]]:
    """Run the job over records, from where the checkpoint stands; what it puts out."""
    run = build_job().run(
        {"moves": records},
        checkpoint=directory,
        parallelism=3,
        epoch_size=6,
        drain=False,
        clock=lambda: DAY_US,
    )
    return run.outputs


def main() -> None:
    make(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
