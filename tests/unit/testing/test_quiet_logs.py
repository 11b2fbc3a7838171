"""A check shows no log of statekit of the runs that it disturbs, and that of the user."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import statekit as sk
from statekit.testing import check
from statekit.testing.runs.quiet_logs import quiet_logs

DISTURBED = logging.getLogger("statekit.base_keeping")
OWN = logging.getLogger("shop")


class Sale(NamedTuple):
    shop: int  # a text may be one of those in the code, as that which is logged


@sk.process(key="shop")
def logged(sale: Sale, count: sk.ValueState[int]) -> None:
    DISTURBED.warning("a base is dropped")
    OWN.warning("counted %d", sale.shop)
    count.update((count.get() or 0) + 1)


def test_a_check_shows_the_log_of_the_user_alone_also_of_other_processes() -> None:
    code = (
        "from tests.unit.testing.test_quiet_logs import logged; "
        "from statekit.testing import check; "
        "check(logged, examples=3)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert "counted" in done.stderr
    assert "a base is dropped" not in done.stderr


def test_the_log_is_shown_again_after_a_check(caplog: pytest.LogCaptureFixture) -> None:
    check(logged, holds=["hosts"], examples=1)
    assert DISTURBED.name not in {record.name for record in caplog.records}
    DISTURBED.warning("a base is dropped")
    assert "a base is dropped" in caplog.text


def test_checks_that_overlap_show_no_log_until_the_last_one_ends() -> None:
    log = logging.getLogger("statekit")
    before, first, second = log.level, quiet_logs(), quiet_logs()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not DISTURBED.isEnabledFor(logging.CRITICAL)
    second.__exit__(None, None, None)
    assert log.level == before
