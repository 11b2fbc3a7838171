"""Nexmark on Flink SQL, and on Spark over the same files, comes to what plain SQL says."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest

from tests.bench.nexmark.flink_sql import QUERIES
from tests.bench.nexmark.on_flink import FLINK_SQL, IN_PROCESS, STATEKIT, check, remaining
from tests.bench.nexmark.sql import answers
from tests.bench.nexmark.streams import KINDS, PARTITIONS, Streams
from tests.bench.peers.environments import NotAvailable

COUNT, PER_BATCH = 4_000, 1_000
RATE, GROUP = 100, 97  # 40 seconds in all; out of order, within the lateness


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    home = tmp_path_factory.mktemp("nexmark") / "events"
    return Streams(home, COUNT, PER_BATCH, rate=RATE, group=GROUP).write()


@pytest.mark.slow
@pytest.mark.parametrize("number", QUERIES)
def test_a_query_on_flink_has_the_result_of_sql(number: int, streams: Streams) -> None:
    assert FLINK_SQL.environment is not None
    if not FLINK_SQL.environment.is_made:
        wanted = FLINK_SQL.environment.requirements
        pytest.skip(f"{wanted} are not installed: python -m tests.bench nexmark-flink-q{number}")
    check(FLINK_SQL, number, streams, answers(number, streams.tables()))


@pytest.mark.soak
@pytest.mark.parametrize("number", [9, 19])
def test_the_job_that_is_measured_beside_flink_has_the_result_of_sql(
    number: int, streams: Streams
) -> None:
    check(STATEKIT, number, streams, answers(number, streams.tables()))


@pytest.mark.slow
@pytest.mark.parametrize("number", QUERIES)
def test_the_job_in_one_process_has_the_result_of_sql(number: int, streams: Streams) -> None:
    check(IN_PROCESS, number, streams, answers(number, streams.tables()))


@pytest.mark.soak
def test_a_result_that_is_not_that_of_sql_is_no_number(streams: Streams) -> None:
    one, *others = answers(3, streams.tables())
    with pytest.raises(NotAvailable, match="statekit on Spark: it gave wrong results: 45 rows"):
        check(STATEKIT, 3, streams, [("another name", *one[1:]), *others])


def test_both_systems_are_given_the_same_lines(streams: Streams) -> None:
    for kind in KINDS:
        lines = []
        for partition in range(PARTITIONS):
            batches = sorted((streams.home / "batches" / kind).glob(f"*-{partition}.json"))
            assert len(batches) == COUNT // PER_BATCH
            whole = (streams.home / "partitions" / kind / f"{partition}.json").read_text()
            assert "".join(path.read_text() for path in batches) == whole
            lines += list(map(json.loads, whole.splitlines()))
        expected = getattr(streams.tables(), kind).to_pylist()
        assert len(lines) == len(expected)
        assert sorted(map(_identity, lines)) == sorted(map(_identity, expected))


def _identity(event: dict[str, Any]) -> tuple[Any, ...]:
    """All that an event has but its instants."""
    return tuple(value for name, value in event.items() if name not in ("at", "expires"))


def test_no_partition_is_more_than_the_lateness_out_of_order(streams: Streams) -> None:
    for partition in range(PARTITIONS):
        lines = (streams.home / "partitions" / "bids" / f"{partition}.json").read_text()
        times = [json.loads(line)["at"] for line in lines.splitlines()]
        behind = [most - time for most, time in zip(accumulate(times, max), times, strict=True)]
        assert 500 < max(behind) < 1000


def test_streams_that_a_query_does_not_take_are_not_written(streams: Streams) -> None:
    home = streams.home.parent / "bids"
    bids = Streams(home, COUNT, PER_BATCH, ("bids",), RATE, GROUP).write()
    assert [path.name for path in (home / "batches").iterdir()] == ["bids"]
    assert bids.tables().bids == streams.tables().bids
    assert bids.tables().persons.num_rows == 0


def test_rows_that_were_taken_back_are_not_results() -> None:
    def change(before: Any, after: Any) -> str:
        rows = {"before": before and {"n": before}, "after": after and {"n": after}}
        return json.dumps({**rows, "op": "u"})

    taken_back = [change(None, 1), change(1, None), change(None, 2), change(2, 3), change(None, 3)]
    assert remaining(taken_back) == [(3,), (3,)]
    # Tasks write files of their own, so a change may be read before the one that it follows.
    assert remaining(reversed(taken_back)) == [(3,), (3,)]
    with pytest.raises(NotAvailable, match="took back"):
        remaining([change(None, 1), change(2, None)])
