"""A check shows no log of statekit of the runs that it disturbs, and that of the user."""

from __future__ import annotations

import logging
from typing import NamedTuple

import pytest

import statekit as sk
from statekit.testing import check
from statekit.testing.quiet_logs import quiet_logs

DISTURBED = logging.getLogger("statekit.base_keeping")
OWN = logging.getLogger("shop")


class Sale(NamedTuple):
    shop: str


@sk.process(key="shop")
def logged(sale: Sale, count: sk.ValueState[int]) -> None:
    DISTURBED.warning("a base is dropped")
    OWN.warning("counted %s", sale.shop)
    count.update((count.get() or 0) + 1)


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
