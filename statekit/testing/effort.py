"""Effort of a check: the number of inputs, and the defaults that pytest sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from statekit.errors import StateTypeError
from statekit.number_faults import int_fault, number_fault
from statekit.shown import shown

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
