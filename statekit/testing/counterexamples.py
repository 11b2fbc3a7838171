"""Search for the smallest input for which something does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from statekit.errors import StateTypeError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

Depth = Literal["quick", "normal", "deep"]
"""How many inputs are tried: some thirty, some hundred, or some thousand."""

_EXAMPLES: dict[str, int] = {"quick": 30, "normal": 200, "deep": 3_000}


def counterexample(
    inputs: SearchStrategy[T], fails: Callable[[T], bool], depth: Depth = "normal"
) -> tuple[T] | None:
    """Return the smallest input that fails, in a tuple; None if none of those tried does.

    The same inputs are tried each time.

    Parameters:
        fails: whether an input fails; called with each input, also while a failure is made smaller.

    Raises:
        StateTypeError: there is no such depth.

    >>> from hypothesis import strategies as st
    >>> counterexample(st.lists(st.integers()), lambda numbers: sum(numbers) > 10)
    ([11],)
    """
    if depth not in get_args(Depth):
        raise StateTypeError(f"depth={depth!r}: use one of {', '.join(get_args(Depth))}")
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis.errors import NoSuchExample

    chosen = settings(
        max_examples=_EXAMPLES[depth],
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    try:
        return (find(inputs, fails, settings=chosen),)
    except NoSuchExample:
        return None


def strategy_of(given: SearchStrategy[T] | Any) -> SearchStrategy[T]:
    """Return a strategy, or that of the values of an annotation."""
    from hypothesis.strategies import SearchStrategy

    from statekit.testing.strategies import values

    return given if isinstance(given, SearchStrategy) else values(given)
