"""Tasks stay on their executors, are spread evenly, and few move when executors come or go."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, cast

from hypothesis import given
from hypothesis import strategies as st

from statekit.checkpoint.manifest import IdleShards, ShardReport, ShardState
from statekit.spark.frames.placement import Executor, Placement, assigned

if TYPE_CHECKING:
    from pyspark import SparkContext

CORES = st.integers(1, 4)
WEIGHTS = st.lists(st.integers(1, 1_000), min_size=1, max_size=60)


def cluster(cores: list[int], first: int = 0) -> list[Executor]:
    return [Executor(str(first + n), f"host-{n}", of) for n, of in enumerate(cores)]


def loads(chosen: list[str], weights: list[int], executors: list[Executor]) -> dict[str, float]:
    """The work of each executor for one of its cores."""
    load = Counter[str]()
    for id, weight in zip(chosen, weights, strict=True):
        load[id] += weight
    return {executor.id: load[executor.id] / executor.cores for executor in executors}


@given(WEIGHTS, st.lists(CORES, min_size=1, max_size=8))
def test_no_executor_has_more_than_its_share_and_one_task(
    weights: list[int], cores: list[int]
) -> None:
    executors = cluster(cores)
    chosen = assigned(weights, executors, [None] * len(weights))
    share = sum(weights) / sum(cores)
    for load in loads(chosen, weights, executors).values():
        assert load <= 1.25 * share + max(weights)


@given(WEIGHTS, st.lists(CORES, min_size=1, max_size=8))
def test_an_even_placement_stays_as_it_is(weights: list[int], cores: list[int]) -> None:
    executors = cluster(cores)
    chosen = assigned(weights, executors, [None] * len(weights))
    for _ in range(5):
        again = assigned(weights, executors, chosen)
        moved = sum(a != b for a, b in zip(chosen, again, strict=True))
        assert moved <= 1, "what does not fit better than it did keeps moving"
        if again == chosen:
            break
        chosen = again
    else:
        raise AssertionError("the placement never settles")


@given(st.integers(1, 40), st.integers(2, 8), st.data())
def test_only_tasks_of_a_lost_executor_move(tasks: int, count: int, data: st.DataObject) -> None:
    executors = cluster([1] * count)
    weights = [10] * tasks
    before = assigned(weights, executors, [None] * tasks)
    lost = data.draw(st.sampled_from(executors))
    left = [executor for executor in executors if executor is not lost]
    after = assigned(weights, left, before)
    moved = [task for task in range(tasks) if after[task] != before[task]]
    assert all(before[task] == lost.id for task in moved)
    counts = Counter(after)
    assert max(counts.values()) <= math.ceil(tasks / len(left))


@given(st.integers(8, 80), st.integers(1, 8))
def test_a_new_executor_gets_about_its_share_and_no_other_task_moves(
    tasks: int, count: int
) -> None:
    executors = cluster([1] * count)
    weights = [10] * tasks
    before = assigned(weights, executors, [None] * tasks)
    more = [*executors, Executor("new", "host-new", 1)]
    after = assigned(weights, more, before)
    moved = [task for task in range(tasks) if after[task] != before[task]]
    assert all(after[task] == "new" for task in moved)
    share = tasks / len(more)
    assert len(moved) <= math.ceil(share)
    assert max(Counter(after).values()) <= max(1.25 * share, math.ceil(share))


def test_tasks_with_many_rows_are_spread_before_those_with_few() -> None:
    executors = cluster([1, 1, 1])
    chosen = assigned([100, 1, 100, 1, 100, 1], executors, [None] * 6)
    assert sorted(chosen[::2]) == ["0", "1", "2"]


def placement() -> Placement:
    return Placement(cast("SparkContext", None), 8, None, "0" * 32)  # which it asks for executors


def test_tasks_stay_the_same_number_until_there_may_be_twice_as_many() -> None:
    placed = placement()
    assert [placed.tasks("count", wanted) for wanted in (3, 5, 2, 6, 13)] == [3, 3, 3, 6, 12]


def test_an_operator_that_ran_in_a_chain_may_get_tasks_of_its_own() -> None:
    placed = placement()
    shard = ShardState(first_group=0, last_group=15)
    for executor, has_moved in (("0", False), ("0", False), ("1", True)):
        report = ShardReport(operator="second", shard=shard, executor=executor)
        (noted,) = placed.noted([report])
        assert noted == report.model_copy(update={"has_moved": has_moved})
        idle = IdleShards(operator="second", ranges=((1, 7),))
        assert placed.noted([idle]) == [idle]
    assert placed.tasks("second", 4) == 4


def test_an_executor_with_twice_the_cores_gets_twice_the_work() -> None:
    chosen = assigned([1] * 12, cluster([2, 1]), [None] * 12)
    assert Counter(chosen) == {"0": 8, "1": 4}
