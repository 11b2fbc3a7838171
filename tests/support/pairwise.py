"""Parameters that depend on each other in pairs: a few of all combinations have each pair."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.support.effort import SOAK


def with_pairs(**values: Iterable[Any]) -> pytest.MarkDecorator:
    """Run a test with each pair of values of two parameters; in `make soak` with each combination.

    Parameters:
        values: of each parameter.
    """
    choices = list(map(list, values.values()))
    combined = list(itertools.product(*choices)) if SOAK else covering_pairs(choices)
    return pytest.mark.parametrize(tuple(values), combined)


def covering_pairs(choices: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return combinations of one value per choice, with each pair of values in one at least.

    The combination that has most of the missing pairs is next.

    >>> covering_pairs(["ab", "xy", "12"])
    [('a', 'x', '1'), ('a', 'y', '2'), ('b', 'x', '2'), ('b', 'y', '1')]
    """
    places = itertools.product(*(range(len(values)) for values in choices))
    pairs_of = {row: set(itertools.combinations(enumerate(row), 2)) for row in places}
    missing = set[Any]().union(*pairs_of.values())
    rows = []
    while missing:
        row = max(pairs_of, key=lambda row: len(pairs_of[row] & missing))
        missing -= pairs_of[row]
        rows.append(row)
    return [
        tuple(values[place] for values, place in zip(choices, row, strict=True)) for row in rows
    ]
