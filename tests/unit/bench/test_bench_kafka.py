"""Jobs from Kafka to Kafka side by side: a number needs right answers, or there is a reason."""

from __future__ import annotations

import gc
from pathlib import Path

import msgspec
import pytest

from tests.bench.kafka_job import KEYS, LOOP, check, peer, throughput
from tests.bench.lean_heap import lean_heap
from tests.bench.peers.environments import NotAvailable
from tests.bench.peers.versus import Contender
from tests.support.kafka_broker import memory_broker


@pytest.mark.slow
def test_the_job_is_compared_with_a_loop_and_a_system_that_is_not_there_has_a_reason() -> None:
    missing = peer(Contender("Bytewax", "kafka_bytewax_job", "nothing", ("10",)), "in memory")
    loop, bytewax = throughput(2_000, turns=1, against=(LOOP, missing))
    assert [arm.name for arm in loop.arms] == ["statekit", LOOP.name]
    assert [arm.events for arm in loop.arms] == [2_000, 2_000]
    assert bytewax.arms == ()
    assert bytewax.without.startswith("Bytewax: it failed: ModuleNotFoundError")
    assert bytewax.result == f"no number: {bytewax.without}"


@pytest.mark.parametrize(
    ("counts", "is_right"),
    [([1, 2, 3], True), ([1, 3, 3], True), ([1, 3, 2], False), ([2, 3], False)],
    ids=[
        "all right",
        "the last of each key alone is compared",
        "wrong",
        "a record without an answer",
    ],
)
def test_the_last_count_of_each_key_is_compared(
    counts: list[int], is_right: bool, tmp_path: Path
) -> None:
    with memory_broker(tmp_path) as kafka:
        kafka.create_topic("out")
        others = [(f"c{number}", times + 1) for times in range(3) for number in range(1, KEYS)]
        answers = [*others, *(("c0", count) for count in counts)]
        values = [{"customer": customer, "orders": count} for customer, count in answers]
        kafka.produce("out", map(msgspec.json.encode, values))
        if is_right:
            check(kafka, "out", 3 * KEYS)
        else:
            with pytest.raises(NotAvailable, match=f"{len(values)} answers to {3 * KEYS} records"):
                check(kafka, "out", 3 * KEYS)


def test_collections_within_a_lean_heap_do_not_visit_what_was_there_before() -> None:
    held = [[number] for number in range(1_000)]
    with lean_heap():
        assert gc.get_freeze_count() > len(held)
        assert not any(each is held for each in gc.get_objects())
    assert gc.get_freeze_count() == 0
