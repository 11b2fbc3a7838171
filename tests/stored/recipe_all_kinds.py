"""How `all-kinds` was made: `python -m tests.stored.recipe_all_kinds DIRECTORY`.

A job with every kind of state, as it was declared first and as it is declared later, its records,
and what was done to its checkpoint.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.savepoint.write import write_savepoint

__all__ = ["DAY_US", "HOUR", "NOON", "Inputs", "Told", "build_first", "build_job", "given", "make"]

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
DAY_US = 86_400_000_000

Inputs = dict[str, list[Any]]


class Order(NamedTuple):
    account: str
    at: dt.datetime
    cents: int


class Payment(NamedTuple):
    account: str
    at: dt.datetime
    cents: int
    method: str | None


class Rate(NamedTuple):
    currency: str
    factor: float


class Told(NamedTuple):
    account: str
    what: str
    number: float


class Account(NamedTuple):
    owner: str


class AccountNow(NamedTuple):
    owner: str
    events: int = 0


class Methods:
    """A plain object as state: which methods of payment were seen."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def snapshot_state(self) -> frozenset[str]:
        return frozenset(self.seen)

    def restore_state(self, state: frozenset[str]) -> None:
        self.seen = set(state)

    @staticmethod
    def split_state(state: frozenset[str], n: int) -> list[frozenset[str]]:
        return [frozenset(sorted(state)[part::n]) for part in range(n)]

    @staticmethod
    def merge_states(states: list[frozenset[str]]) -> frozenset[str]:
        return frozenset().union(*states)


def share(count: int, n: int) -> list[int]:
    return [count // n + (part < count % n) for part in range(n)]


def as_text(cents: int) -> str:
    return f"{cents / 100:.2f}"


MEAN: sk.Aggregate[int, tuple[int, int], float] = sk.Aggregate(
    create=lambda: (0, 0),
    add=lambda held, cents: (held[0] + cents, held[1] + 1),
    result=lambda held: held[0] / held[1],
)
Mean = Annotated[sk.AggregatingState[int, tuple[int, int], float], MEAN]
Largest = Annotated[sk.ReducingState[int], sk.Reduce(max)]
Lately = Annotated[sk.ValueState[int], sk.TTL("2 hours", clock="event")]
ByMethod = Annotated[sk.MapState[str, int], sk.TTL("2 days")]
Turned = Annotated[sk.ValueState[complex], sk.PickleCodec()]
Counted = Annotated[sk.OperatorState[int], sk.Redistribute(split=share, merge=sum)]
Recent = Annotated[sk.OperatorListState[int], sk.Redistribute("even")]
Rates = sk.BroadcastState[str, float]


def _cents(event: Order | Payment) -> int:
    return event.cents if isinstance(event, Order) else -event.cents


# --------------------------------------------------------------------- as it was declared first


@sk.process(key="account", event_time="at", lateness="1 hour")
def ledger_first(
    event: Order | Payment,
    ctx: sk.Context,
    account: sk.ValueState[Account],
    last: sk.ValueState[int],
    cents: sk.ListState[int],
    by_method: ByMethod,
    largest: Largest,
    mean: Mean,
    lately: Lately,
    turned: Turned,
    rates: Rates,
    count: Counted,
    recent: Recent,
    methods: Methods,
) -> Iterator[Told]:
    account.update(Account(event.account.upper()))
    last.update(event.cents)
    cents.append(_cents(event))
    if isinstance(event, Payment) and event.method is not None:
        by_method[event.method] = by_method.get(event.method, 0) + event.cents
        methods.seen.add(event.method)
    largest.add(event.cents)
    mean.add(event.cents)
    lately.update((lately.get() or 0) + 1)
    turned.update((turned.get() or 1) * 1j)
    count.update((count.get() or 0) + 1)
    recent.append(event.cents)
    ctx.timers.set(event.at + 6 * HOUR, name="quiet")
    ctx.timers.set(dt.datetime(2030, 1, 1, tzinfo=dt.UTC), name="review", clock="processing")
    yield Told(event.account, "due", sum(cents) * rates.get("EUR", 1.0))


@ledger_first.on_timer
def ledger_first_timer(
    timer: sk.Timer, ctx: sk.Context[str], cents: sk.ListState[int]
) -> Iterator[Told]:
    yield Told(ctx.key, timer.name or "", sum(cents))


@ledger_first.on_broadcast
def ledger_first_rate(rate: Rate, rates: Rates) -> None:
    rates[rate.currency] = rate.factor


# ---------------------------------------------------------------------------- as it is declared


@sk.process(key="account", event_time="at", lateness="1 hour", migrate={"last": as_text})
def ledger(
    event: Order | Payment,
    ctx: sk.Context,
    account: sk.ValueState[AccountNow],
    last: sk.ValueState[str],
    cents: sk.ListState[int],
    by_method: ByMethod,
    largest: Largest,
    mean: Mean,
    lately: Lately,
    turned: Turned,
    rates: Rates,
    count: Counted,
    recent: Recent,
    methods: Methods,
) -> Iterator[Told]:
    known = account.get() or AccountNow(event.account.upper())
    account.update(known._replace(events=known.events + 1))
    before = float(last.get() or "0")
    last.update(as_text(event.cents))
    cents.append(_cents(event))
    if isinstance(event, Payment) and event.method is not None:
        by_method[event.method] = by_method.get(event.method, 0) + event.cents
        methods.seen.add(event.method)
    largest.add(event.cents)
    mean.add(event.cents)
    lately.update((lately.get() or 0) + 1)
    turned.update((turned.get() or 1) * 1j)
    count.update((count.get() or 0) + 1)
    recent.append(event.cents)
    ctx.timers.set(event.at + 6 * HOUR, name="quiet")
    yield Told(event.account, "due", sum(cents) * rates.get("EUR", 1.0))
    yield Told(event.account, "before", before)
    yield Told(event.account, "turned", (turned.get() or 0).real)
    yield Told(event.account, "lately", lately.get() or 0)


@ledger.on_timer
def ledger_timer(timer: sk.Timer, ctx: sk.Context[str], cents: sk.ListState[int]) -> Iterator[Told]:
    yield Told(ctx.key, timer.name or "", sum(cents))


@ledger.on_broadcast
def ledger_rate(rate: Rate, rates: Rates) -> None:
    rates[rate.currency] = rate.factor


# ------------------------------------------------------------------------------- never changed


@sk.process(key="account", event_time="at", lateness="1 hour", ordered=True)
def in_order(event: Order | Payment, due: sk.ValueState[int]) -> Iterator[Told]:
    due.update((due.get() or 0) + _cents(event))
    yield Told(event.account, type(event).__name__, due.get() or 0)


@sk.process()
def sample(order: Order, kept: Recent) -> Iterator[Told]:
    kept.append(order.cents)
    yield Told(order.account, "kept", order.cents)


def _job(declared: sk.Process[Any, Any, Any]) -> sk.Job:
    job = sk.Job("shop", key_groups=16)
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    both, rates = orders.union(payments), job.source("rates", Rate)
    both.process(declared, name="ledger", broadcast=rates).sink("told")
    both.process(in_order).sink("ordered")
    orders.window(sk.tumbling("3 hours"), key="account", event_time="at").sum("cents").sink("sums")
    orders.process(sample).sink("sampled")
    return job


def build_first() -> sk.Job:
    """The job as it was declared first."""
    return _job(ledger_first)


def build_job() -> sk.Job:
    """The job as it is declared."""
    return _job(ledger)


def given(count: int) -> Inputs:
    """The first so many records of each stream; of rates, a third. One account comes but once."""
    methods = ("card", "cash", None)
    accounts = ["once" if n == 1 else f"acc-{n % 7}" for n in range(count)]
    return {
        "orders": [
            Order(account, NOON + n * HOUR / 4, 100 * n + 5) for n, account in enumerate(accounts)
        ],
        "payments": [
            Payment(f"acc-{n % 5}", NOON + n * HOUR / 4, 90 * n, methods[n % 3])
            for n in range(count)
        ],
        "rates": [Rate("EUR", 1 + n / 8) for n in range(count // 3)],
    }


def run(job: sk.Job, directory: Path, count: int, **options: Any) -> dict[str, list[Any]]:
    """Run a job over the first records, from where the checkpoint stands; what it puts out."""
    made = job.run(
        given(count),
        checkpoint=directory,
        epoch_size=6,
        drain=False,
        clock=lambda: DAY_US,
        **options,
    )
    return made.outputs


def make(directory: Path) -> None:
    """Epochs 0 to 7, and the savepoint `s` of the last one. One key has rows of the first types."""
    run(build_first(), directory, 12, parallelism=2)  # 0 and 1
    rescale_offline(Repository(directory), 3, job=build_first())  # 2
    run(build_job(), directory, 24)  # 3 and 4
    run(build_job(), directory, 24, from_epoch=3)  # 5 stands where 3 did; 6 is 4 once more
    run(build_job(), directory, 27)  # 7
    write_savepoint(Repository(directory), "s")


def main() -> None:
    make(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
