"""Typed expressions: a tree of few simple operations, in which every conversion is explicit.

`typing_rules` makes them of the nodes of an expression. Whatever computes an expression, for
records, record batches or columns of Spark, has one function for each of these operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from statekit.expressions.tree import ExpressionNode
from statekit.expressions.value_types import ValueType

Operation = Literal[
    "column",  # value: the path
    "literal",  # value: the constant
    "and",
    "or",
    "not",
    "is_null",
    "equal",
    "less",
    "less_equal",
    "distinct",
    "in",  # value: a tuple of constants that are not NULL
    "like",  # value: the pattern
    "add",
    "subtract",
    "multiply",
    "divide",  # of floats
    "modulo",  # of ints
    "negate",
    "abs",
    "floor",  # of floats
    "ceil",  # of floats
    "concat",
    "length",
    "lower",
    "upper",
    "case",  # conditions and values in turn, then the other value
    "coalesce",
    "to_float",  # from int, decimal, text
    "to_int",  # from float, text
    "to_text",  # from int
    "to_decimal",  # from int, decimal, if every value fits
    "to_date",  # from timestamp
    "trunc",  # value: the unit
    "extract",  # value: the unit
    "later",  # timestamp + interval
    "earlier",  # timestamp - interval
    "between_times",  # timestamp - timestamp
]

TAKES_NULL = frozenset({"and", "or", "is_null", "distinct", "case", "coalesce"})
"""Operations that have a value of NULL. The others are NULL if an operand is: their operands are
computed from left to right, and not those behind one that is NULL.
"""


@dataclass(frozen=True, eq=False)
class Typed:
    """An operation with its operands, and the type of its result.

    Parameters:
        node: that it comes from, for messages.
    """

    operation: Operation
    operands: tuple[Typed, ...]
    type: ValueType
    node: ExpressionNode
    value: Any = None

    @property
    def kind(self) -> str:
        """The kind of the first operand, or of the result without operands."""
        return (self.operands[0] if self.operands else self).type.kind

    @property
    def is_constant(self) -> bool:
        """True for a constant."""
        return self.operation == "literal"

    @property
    def is_null(self) -> bool:
        """True for the constant NULL."""
        return self.is_constant and self.value is None

    @property
    def can_fail(self) -> bool:
        """True if there may be values of the right types for which it is an error."""
        return self._fails or any(operand.can_fail for operand in self.operands)

    @property
    def _fails(self) -> bool:
        if self.operation in ("add", "subtract", "multiply", "negate", "abs"):
            return self.type.kind == "int"
        if self.operation in ("divide", "modulo", "later", "earlier"):
            return True
        return self.operation in ("to_int", "to_float") and self.kind in ("float", "text")
