"""Search for a counterexample: the smallest input that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from statekit.errors import StateTypeError
from statekit.number_faults import int_fault, number_fault
from statekit.shown import shown

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

Depth = Literal["quick", "normal", "deep"]
"""Number of inputs to try: some fifteen, some hundred, or some thousand."""

INPUTS: dict[Depth, int] = {"quick": 15, "normal": 100, "deep": 2_000}
"""Number of inputs to try at each depth."""


@dataclass(frozen=True)
class Effort:
    """Effort of a search: the number of inputs, their seed, and a time limit.

    Parameters:
        depth: gives the number of inputs; None for the depth that was set, at first "normal".
        examples: the number of inputs, instead of that of the depth; None for that of the depth.
        seed: selects the inputs. The same seed tries the same ones; None for the seed that was set,
            at first 0.
        seconds: the time limit of a check, in seconds; None for no limit.

    Raises:
        StateTypeError: one is not possible.

    >>> Effort("quick").inputs(), Effort(examples=7).inputs()
    (15, 7)
    """

    depth: Depth | None = None
    examples: int | None = None
    seed: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        depth: Any = self.depth
        if depth is not None and not (isinstance(depth, str) and depth in INPUTS):
            raise StateTypeError(f"depth={shown(self.depth)}: use one of {', '.join(INPUTS)}")
        for name, least in (("examples", 1), ("seed", 0)):
            number = getattr(self, name)
            fault = int_fault(number, f"give an int of at least {least}", least=least)
            if number is not None and fault:
                raise StateTypeError(f"{name}={shown(number)}{fault}")
        fault = number_fault(self.seconds, "give a number of seconds above 0", above=True)
        if self.seconds is not None and fault:
            raise StateTypeError(f"seconds={shown(self.seconds)}{fault}")

    def filled(self) -> Effort:
        """Return the effort with the defaults in place of None. A given depth overrides a default
        number of examples.
        """
        examples = self.examples
        if examples is None and self.depth is None:
            examples = _default.examples
        seed = _default.seed if self.seed is None else self.seed
        seconds = _default.seconds if self.seconds is None else self.seconds
        return Effort(self.depth or _default.depth or "normal", examples, seed or 0, seconds)

    def inputs(self, of: Mapping[Depth, int] = INPUTS) -> int:
        """Return the number of inputs to try.

        Parameters:
            of: the number at each depth.
        """
        filled = self.filled()
        assert filled.depth is not None
        return filled.examples or of[filled.depth]


_default = Effort()


def set_default_effort(effort: Effort) -> None:
    """Set the effort for all values that a check leaves out."""
    global _default
    _default = effort


def counterexample(
    inputs: SearchStrategy[T],
    fails: Callable[[T], bool],
    effort: Effort = Effort(),
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
    >>> counterexample(st.lists(st.integers()), lambda numbers: sum(numbers) > 10)
    ([11],)
    """
    inputs_max = max(1, int(effort.inputs() * share))
    from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
    from hypothesis.errors import Flaky, InvalidArgument

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
        return (min(failed, key=lambda tried: len(repr(tried))),)
    return None


class _FailedError(Exception):
    """The error of an input that fails."""


class _SearchIsOver(BaseException):
    """The end of a search. It is no Exception, which Hypothesis would take for a failure."""


def strategy_of(given: SearchStrategy[T] | Any) -> SearchStrategy[T]:
    """Return a strategy, or that of the values of an annotation."""
    from statekit.testing.strategies import values

    strategy: SearchStrategy[T] = given if is_strategy(given) else values(given)
    return strategy


def is_strategy(given: object) -> bool:
    """Return whether something is a strategy of Hypothesis."""
    from hypothesis.strategies import SearchStrategy

    return isinstance(given, SearchStrategy)
