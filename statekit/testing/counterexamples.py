"""Search for a counterexample: the smallest input that fails."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky, InvalidArgument
from hypothesis.strategies import SearchStrategy

from statekit.errors import StateTypeError
from statekit.testing.effort import Effort
from statekit.testing.strategies import values

T = TypeVar("T")


def counterexample(
    inputs: SearchStrategy[T],
    fails: Callable[[T], bool],
    effort: Effort,
    *,
    share: float = 1.0,
    is_shrunk: bool = True,
    shrinks_max: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[T] | None:
    """Return the smallest input that fails, in a tuple; None if no input that is tried fails.

    The same inputs are tried again as long as the code is the same: Hypothesis also tries constants
    that it finds in it.

    Parameters:
        fails: whether an input fails; called with each input, also while a failure is made smaller.
        effort: the effort of the search.
        share: of the usual number of inputs.
        is_shrunk: whether an input that fails is made smaller.
        shrinks_max: the maximum number of inputs to try to make one smaller; None for no limit.
        is_over: whether no more inputs are tried; at least one is, and all that make one smaller.

    >>> from hypothesis import strategies as st
    >>> counterexample(st.lists(st.integers()), lambda numbers: sum(numbers) > 10, Effort())
    ([11],)
    """
    inputs_max = max(1, int(effort.inputs() * share))
    failed: list[T] = []
    begun: list[bool] = []
    shrinks = count(1)

    @seed(effort.filled().seed)
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
        if begun and not failed and is_over():
            raise _SearchIsOver
        if failed and shrinks_max is not None and next(shrinks) > shrinks_max:
            raise _SearchIsOver
        begun.append(True)
        if fails(tried):
            failed.append(tried)
            raise _FailedError

    try:
        search()
    except _FailedError:
        return (failed[-1],)  # the smallest one is run last
    except _SearchIsOver:
        return (failed[-1],) if failed else None
    except StateTypeError as error:
        raise type(error)(*error.args) from error.__cause__  # without notes of Hypothesis
    except InvalidArgument as error:
        raise StateTypeError(f"no records can be drawn from what was given: {error}") from error
    except Flaky:  # it depends on chance whether an input fails
        if not failed:  # or it is not the input that did
            raise
        return (min(failed, key=lambda tried: len(repr(tried))),)
    return None


class _FailedError(Exception):
    """The error of an input that fails."""


class _SearchIsOver(BaseException):
    """The end of a search. It is no Exception, which Hypothesis would take for a failure."""


def strategy_of(given: SearchStrategy[T] | Any) -> SearchStrategy[T]:
    """Return a strategy, or that of the values of an annotation."""
    strategy: SearchStrategy[T] = given if isinstance(given, SearchStrategy) else values(given)
    return strategy
