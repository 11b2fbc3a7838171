"""Rare cyclic garbage collection, for loops that create many objects."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

RARE_COLLECTION = (50_000, 20, 100)
"""Thresholds of Python's three generations."""


_WITHIN_EPOCHS = (250_000, 20, 100)
"""The same for a run whose epochs are followed by `collect_between_epochs`."""


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """Reduce the frequency of cyclic garbage collection.

    A record is a few objects, nearly none of them cyclic. At the usual threshold of 700 the search
    for cycles took a third of the time of a running count, and three quarters of the time of
    decoding 50,000 records.
    """
    with _at_thresholds(RARE_COLLECTION):
        yield


@contextlib.contextmanager
def rare_collection_within_epochs() -> Iterator[None]:
    """Reduce the frequency further, as most objects of an epoch are gone at its end.

    While they live, each collection visits them in vain: a seventh of the time of a running count
    over records of Kafka.
    """
    with _at_thresholds(_WITHIN_EPOCHS):
        yield


@contextlib.contextmanager
def _at_thresholds(thresholds: tuple[int, int, int]) -> Iterator[None]:
    usual = gc.get_threshold()
    if usual[0] == 0 or usual[0] >= thresholds[0]:
        yield  # turned off, or rare enough
        return
    gc.set_threshold(*thresholds)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def collect_between_epochs() -> None:
    """Collect cyclic garbage if it is due by the thresholds of `rare_collection`."""
    due = [count > most for count, most in zip(gc.get_count(), RARE_COLLECTION, strict=True)]
    if gc.isenabled() and due[0]:
        gc.collect(2 if due[2] else 1 if due[1] else 0)
