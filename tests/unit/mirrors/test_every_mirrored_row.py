"""Mirrors of every kind of state, with TTLs by both clocks, at random epochs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.functions.process import Process
from statekit.testing import Harness
from tests.support.all_row_kinds import PROCESSES, Step, epochs, run
from tests.support.mirrors import delta_rows, shown, state_rows


@pytest.mark.slow
@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.name)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=epochs(), follows=st.lists(st.booleans(), min_size=5, max_size=5))
def test_tables_of_every_kind_of_state_equal_it_at_each_epoch(
    process: Process[Any, Any, Any], steps: list[list[Step]], follows: list[bool]
) -> None:
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        harness = Harness(process, checkpoint=place / "job", parallelism=2)
        states = [spec.name for spec in process.states]
        tables = {f"{process.name}.{name}": sk.sinks.delta(place / name) for name in states}
        with sk.mirror(place / "job", tables, name="all") as mirror:
            for number, records in enumerate(steps):
                run(harness, number, records)
                if number == 2:
                    harness.rescale(3)
                if not follows[number]:
                    continue
                epoch = mirror.catch_up()
                for name in states:
                    expected = state_rows(place / "job", process.name, name, epoch)
                    found = shown(delta_rows(place / name), expected)
                    assert found == shown(expected, expected), name
