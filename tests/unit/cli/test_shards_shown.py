"""What commands show of shards: those that were divided, those with operator state, and many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint import rollback
from statekit.checkpoint.gc.readers import Readers
from statekit.checkpoint.repository import Repository
from statekit.cli import inspect as cli_inspect
from statekit.cli import rescale as cli_rescale
from statekit.cli import rollback as cli_rollback
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.rescale.plan import plan_of_rescale
from statekit.maintenance.sizes import OperatorSizes, counted_sizes, stored_sizes
from statekit.query.rows.reader import CheckpointReader
from tests.support.printed import printed


class Event(NamedTuple):
    user: str
    value: int


class Rate(NamedTuple):
    name: str
    value: float


def share(count: int, n: int) -> list[int]:
    return [count // n + (part < count % n) for part in range(n)]


def halves(count: float, n: int) -> list[float]:
    return [count / n] * n


Count = Annotated[sk.OperatorState[int], sk.Redistribute(split=share, merge=sum)]
Fraction = Annotated[sk.OperatorState[float], sk.Redistribute(split=halves, merge=sum)]
Values = Annotated[sk.OperatorListState[int], sk.Redistribute("even")]


@sk.process(key="user")
def follow(
    event: Event,
    total: sk.ValueState[int],
    count: sk.OperatorState[int],
    values: Values,
    rates: sk.BroadcastState[str, float],
) -> None:
    total.update((total.get() or 0) + event.value)
    count.update((count.get() or 0) + 1)
    values.append(event.value)


@follow.on_broadcast
def new_rate(rate: Rate, rates: sk.BroadcastState[str, float]) -> None:
    rates[rate.name] = rate.value


@sk.process(key="user")
def follow_with_rule(event: Event, count: Count) -> None:
    count.update((count.get() or 0) + 1)


@sk.process(key="user")
def follow_with_fraction(event: Event, count: Fraction) -> None:
    count.update((count.get() or 0) + 0.5)


@sk.process(key="user")
def follow_counting(event: Event, count: sk.OperatorState[int]) -> None:
    count.update((count.get() or 0) + 1)


@sk.process(key="user")
def total_of(event: Event, total: sk.ValueState[int]) -> None:
    total.update(event.value)


@sk.process()
def sample(event: Event, kept: Values) -> None:
    kept.append(event.value)


@sk.process()
def ignore(event: Event) -> None: ...


def job() -> sk.Job:
    made = sk.Job("shop")
    events, rates = made.source("events", Event), made.source("rates", Rate)
    events.process(follow, broadcast=rates)
    events.process(sample)
    events.process(ignore)
    return made


def job_of(declared: sk.Process[Any, ..., Any]) -> sk.Job:
    made = sk.Job("counts")
    made.source("events", Event).process(declared, name="counts")
    return made


EVENTS = [Event(f"u{n}", n) for n in range(60)]


def made(path: Path) -> None:
    given: dict[str, list[Any]] = {"events": EVENTS, "rates": [Rate("eur", 1.5)]}
    job().run(given, checkpoint=path, parallelism=4, drain=False)


def inspected(path: Path, *, fast: bool = False) -> str:
    reader = CheckpointReader(path)
    return printed(
        lambda: cli_inspect.print_checkpoint(reader, counted(reader, fast=fast), Readers([], []))
    )


def counted(reader: CheckpointReader, *, fast: bool) -> dict[str, OperatorSizes]:
    names = [operator.name for operator in reader.job.operators]
    return {name: (stored_sizes if fast else counted_sizes)(reader, name) for name in names}


def test_inspect_does_not_take_operator_state_for_a_full_key_group(tmp_path: Path) -> None:
    made(tmp_path)
    reader = CheckpointReader(tmp_path)
    for fast in (False, True):
        found = counted(reader, fast=fast)
        assert found["follow"].states["values"].rows == len(EVENTS)
        assert sum(size.rows for size in found["follow"].shards if size) == len(EVENTS), (
            "one per key"
        )
    text = inspected(tmp_path)
    assert "skew of follow" in text
    assert "skew of sample" not in text, "it has no key"
    assert "operator ignore ← events: no state" in text


def test_inspect_shows_unknown_sizes_of_divided_shards(tmp_path: Path) -> None:
    counting = sk.Job("keyed")
    counting.source("events", Event).process(total_of)
    counting.run({"events": EVENTS}, checkpoint=tmp_path, parallelism=2, drain=False)
    rescale_offline(Repository(tmp_path), 4)
    reader = CheckpointReader(tmp_path)
    assert counted(reader, fast=True)["total_of"].shards == [None] * 4
    assert "leave out --fast to count" in inspected(tmp_path, fast=True)
    total = counted(reader, fast=False)["total_of"]
    assert sum(size.rows for size in total.shards if size) == len(EVENTS)
    assert "leave out --fast" not in inspected(tmp_path)


def test_inspect_of_two_thousand_shards_is_a_page(tmp_path: Path) -> None:
    counting = sk.Job("keyed", key_groups=4096)
    counting.source("events", Event).process(total_of)
    counting.run({"events": EVENTS}, checkpoint=tmp_path, parallelism=2000, drain=False)
    text = inspected(tmp_path)
    assert len(text.splitlines()) < 40
    assert "1999" in text
    assert "…" in text


def test_a_plan_shows_the_redistribution_of_operator_state_and_does_not_count_it_by_key_group(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    plans = plan_of_rescale(CheckpointReader(tmp_path), 3)
    by_name = {plan.name: plan for plan in plans}
    assert sum(load.size.rows for load in by_name["follow"].after if load.size) == len(EVENTS)
    assert max(size.rows for _, size in by_name["follow"].hot) < 20
    fast = plan_of_rescale(CheckpointReader(tmp_path), 3, fast=True)
    assert [load.size for load in fast[0].before] == [load.size for load in plans[0].before]
    text = printed(lambda: cli_rescale.print_plan(plans, counted=True))
    assert "operator state count, 4 rows: no rule, so this is refused" in text
    assert "operator state values, 60 rows: divided evenly" in text
    assert "operator state rates, 4 rows: copied" in text
    assert "operator sample: 4 → 3 shards: no state of keys" in text


def test_a_rule_that_the_job_declares_now_is_that_of_an_offline_rescale(tmp_path: Path) -> None:
    job_of(follow_counting).run({"events": EVENTS}, checkpoint=tmp_path, parallelism=4, drain=False)
    repository = Repository(tmp_path)
    with pytest.raises(sk.RescaleError, match="no rule redistributes them"):
        rescale_offline(repository, 3, job=job_of(follow_counting))
    rescale_offline(repository, 3, job=job_of(follow_with_rule))
    assert sum(CheckpointReader(tmp_path).operator_state("counts", "count")) == len(EVENTS)


def test_functions_for_another_type_do_not_write_rows_that_the_checkpoint_cannot_read(
    tmp_path: Path,
) -> None:
    job_of(follow_counting).run({"events": EVENTS}, checkpoint=tmp_path, parallelism=2, drain=False)
    repository, changed = Repository(tmp_path), job_of(follow_with_fraction)
    with pytest.raises(
        sk.RescaleError, match=r"stored type int, and the job declares float.*start the"
    ):
        rescale_offline(repository, 4, job=changed)
    changed.run({"events": [*EVENTS, EVENTS[0]]}, checkpoint=tmp_path, parallelism=4, drain=False)
    held = CheckpointReader(tmp_path).operator_state("counts", "count")
    assert sum(held) == len(EVENTS) + 0.5


def test_a_rollback_counts_rows_of_shards_that_were_divided(tmp_path: Path) -> None:
    counting = sk.Job("keyed")
    counting.source("events", Event).process(total_of)
    for end, parallelism in ((30, 2), (60, 3)):
        given = {"events": EVENTS[:end]}
        counting.run(given, checkpoint=tmp_path, parallelism=parallelism, drain=False)
    text = printed(lambda: cli_rollback.print_rollback(rollback.plan(Repository(tmp_path), 0)))
    assert "parallelism 3 → 2" in text
    (row,) = (line for line in text.splitlines() if "total_of.total" in line)
    assert [cell.strip() for cell in row.split("│")[2:4]] == ["60", "30"]
