"""Wrong counts of an older manifest are reported by verify, and fail no epoch."""

from __future__ import annotations

import pytest

import statekit as sk
from statekit.checkpoint.manifest import OperatorEpoch, ShardReport, ShardState
from statekit.checkpoint.sealed_json import COUNT_MAX
from statekit.job.plan import Operator
from statekit.runtime.shard_reports import OperatorReports
from tests.support.served import Sale, sales


@pytest.mark.parametrize(("counted", "remaining"), [(-(2**60), COUNT_MAX), (2**60, None), (2, 3)])
def test_the_size_of_parts_stays_within_its_bounds(counted: int, remaining: int | None) -> None:
    job = sk.Job("shop")
    job.source("records", Sale).process(sales)
    operator: Operator = job.plan.operators[0]
    shard = ShardState(first_group=0, last_group=3)
    before = OperatorEpoch(shards=(shard,), undivided_rows={"total": 5})
    report = ShardReport(operator="sales", shard=shard)
    report = report.model_copy(update={"undivided_rows": {"total": counted}})
    after = OperatorReports(operator, 7, [shard], [report]).combined(before, {"total"}, None)
    assert after.undivided_rows.get("total") == remaining
