"""What a run comes to has each epoch once, also if reading it failed and was tried again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

import statekit as sk
from statekit.testing import JobHarness
from statekit.testing.driver import Contents
from statekit.testing.subject import Observed, Subject


class Order(NamedTuple):
    customer: str
    cents: int


@sk.process(key="customer")
def spent(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    yield total.get() or 0


def test_an_epoch_whose_contents_cannot_be_read_is_not_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, observed = JobHarness(Subject(spent).job, 1), Observed()
    emitted = harness.send(records=[Order("a", 1)])

    def unreadable() -> Contents:
        raise sk.StorageError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(harness, "contents", unreadable)
        with pytest.raises(sk.StorageError):
            observed.add(emitted, harness)
    assert not observed.epochs
    assert not observed.contents
    observed.add(emitted, harness)
    assert observed.epochs == [{"outputs": [1]}]
