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


_SEED = 0  # the same inputs each time

_EXAMPLES: dict[str, int] = {"quick": 30, "normal": 100, "deep": 2_000}


def examples(depth: Depth | None = None) -> int:
    """Return how many inputs are tried at a depth.

    Raises:
        StateTypeError: there is no such depth.

    >>> examples("quick")
    30
    """
    depth = depth or _default
    if str(depth) not in _EXAMPLES:
        raise StateTypeError(f"depth={depth!r}: use one of {', '.join(_EXAMPLES)}")
    return _EXAMPLES[depth]


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
    most = examples(depth)
    from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
    from hypothesis.errors import Flaky, InvalidArgument

    failed: list[T] = []

    @seed(_SEED)
    @settings(
        max_examples=max(1, int(most * share)),
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
    except InvalidArgument as error:
        raise StateTypeError(f"no records can be drawn from what was given: {error}") from error
    except Flaky:  # it depends on chance whether an input fails
        return (min(failed, key=lambda tried: len(repr(tried))),)
    return None


class _FailedError(Exception):
    """An input failed."""


def strategy_of(given: SearchStrategy[T] | Any) -> SearchStrategy[T]:
    """Return a strategy, or that of the values of an annotation."""
    from hypothesis.strategies import SearchStrategy

    from statekit.testing.strategies import values

    return given if isinstance(given, SearchStrategy) else values(given)
