"""The shards before an epoch, as Spark's tasks get them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest

from statekit.checkpoint.manifest import ShardPlan, ShardPlans, ShardState
from statekit.spark.worker.pickling import PickledBases

SHARDS = 300


def shards(count: int = SHARDS) -> list[ShardState]:
    return [ShardState(first_group=shard, last_group=shard) for shard in range(count)]


def sent(bases: PickledBases) -> PickledBases:
    """What arrives in a task."""
    return pickle.loads(pickle.dumps(bases))  # type: ignore[no-any-return]


@contextmanager
def counted(function: str) -> Iterator[list[int]]:
    """The number of shards in each call of a function of pickle."""
    sizes: list[int] = []
    inner = getattr(pickle, function)

    def call(value: Sequence[object] | bytes, *options: int) -> object:
        result = inner(value, *options)
        sizes.append(len(value if function == "dumps" else result))
        return result

    with patch.object(pickle, function, call):
        yield sizes


@pytest.mark.parametrize("count", [1, 64, 65, SHARDS])
def test_a_task_gets_all_shards(count: int) -> None:
    bases = shards(count)
    arrived = sent(PickledBases(bases))
    assert list(arrived) == bases
    assert arrived[-1] == bases[-1]
    assert arrived[:3] == bases[:3]
    with pytest.raises(IndexError):
        arrived[count]


def test_a_task_unpickles_only_the_chunks_of_its_shards() -> None:
    arrived = sent(PickledBases(shards()))
    with counted("loads") as unpickled:
        for shard in (70, 71, 72, 299):
            assert arrived[shard].first_group == shard
    assert sum(unpickled) < SHARDS / 2


def test_shards_that_have_not_changed_are_not_pickled_again() -> None:
    bases = shards()
    first = PickledBases(bases)
    bases[7] = bases[7].model_copy(update={"attempt": "a", "changed": 1})
    with counted("dumps") as pickled:
        second = PickledBases(bases, first)
    assert 0 < sum(pickled) < SHARDS / 2
    assert list(sent(second)) == bases
    assert list(sent(first)) == shards()


def test_another_parallelism_changes_all_shards() -> None:
    first = PickledBases(shards())
    for count in (1, 100, 2 * SHARDS):
        assert list(sent(PickledBases(shards(count), first))) == shards(count)


def test_plans_differ_in_their_shard_only_and_those_with_a_timer_are_due() -> None:
    bases = shards(4)
    bases[2] = bases[2].model_copy(update={"wake_us": {"processing": 5}})
    common = ShardPlan("id", "count", 0, 7, bases[0], 6, processing_time_us=5)
    plans = ShardPlans.of(common, bases)
    assert plans.due == {2}
    assert [*plans] == [replace(common, shard=n, base=base) for n, base in enumerate(bases)]
    assert plans[1:3] == [plans[1], plans[2]]
    assert not ShardPlans.of(replace(common, processing_time_us=4), bases).due
