"""Search for the smallest input for which something does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from statekit.errors import StateTypeError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

Depth = Literal["quick", "normal", "deep"]
"""How many inputs are tried: some thirty, some hundred, or some thousand."""

_default: Depth = "normal"


def set_default_depth(depth: Depth) -> None:
    """Set how many inputs are tried where no depth is given."""
    global _default
    _default = depth


def chosen_depth(depth: Depth | None) -> Depth:
    """Return a depth, or the one that was set.

    Raises:
        StateTypeError: there is no such depth.
    """
    depth = depth or _default
    if str(depth) not in INPUTS:
        raise StateTypeError(f"depth={depth!r}: use one of {', '.join(INPUTS)}")
    return depth


_SEED = 0  # the same inputs each time

INPUTS: dict[Depth, int] = {"quick": 30, "normal": 100, "deep": 2_000}
"""How many inputs are tried."""


def examples(depth: Depth | None = None) -> int:
    """Return how many inputs are tried at a depth.

    Raises:
        StateTypeError: there is no such depth.

    >>> examples("quick")
    30
    """
    return INPUTS[chosen_depth(depth)]


def counterexample(
    inputs: SearchStrategy[T],
    fails: Callable[[T], bool],
    depth: Depth | None = None,
    *,
    share: float = 1.0,
    is_shrunk: bool = True,
) -> tuple[T] | None:
    """Return the smallest input that fails, in a tuple; None if none of those tried does.

    The same inputs are tried again as long as the code is the same: Hypothesis also tries constants
    that it finds in it.

    Parameters:
        fails: whether an input fails; called with each input, also while a failure is made smaller.
        share: of the usual number of inputs.
        is_shrunk: whether an input that fails is made smaller.

    Raises:
        StateTypeError: there is no such depth.

    >>> from hypothesis import strategies as st
    >>> counterexample(st.lists(st.integers()), lambda numbers: sum(numbers) > 10)
    ([11],)
    """
    inputs_max = max(1, int(examples(depth) * share))
    from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
    from hypothesis.errors import Flaky, InvalidArgument

    failed: list[T] = []

    @seed(_SEED)
    @settings(
        max_examples=inputs_max,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if is_shrunk else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
    )
    @given(inputs)
    def search(tried: T) -> None:
        if fails(tried):
            failed.append(tried)
            raise _FailedError

    try:
        search()
    except _FailedError:
        return (failed[-1],)  # the smallest one is run last
    except StateTypeError as error:
        raise type(error)(*error.args) from error.__cause__  # without notes of Hypothesis
    except InvalidArgument as error:
        raise StateTypeError(f"no records can be drawn from what was given: {error}") from error
    except Flaky:  # it depends on chance whether an input fails
        return (min(failed, key=lambda tried: len(repr(tried))),)
    return None


class _FailedError(Exception):
    """An input failed."""


def strategy_of(given: SearchStrategy[T] | Any) -> SearchStrategy[T]:
    """Return a strategy, or that of the values of an annotation."""
    from statekit.testing.strategies import values

    strategy: SearchStrategy[T] = given if is_strategy(given) else values(given)
    return strategy


def is_strategy(given: object) -> bool:
    """Return whether something is a strategy of Hypothesis."""
    from hypothesis.strategies import SearchStrategy

    return isinstance(given, SearchStrategy)
