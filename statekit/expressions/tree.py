"""Trees of expressions: immutable nodes that are equal if they have the same structure, and that
are rendered as SQL text.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MOST_DIGITS = 38
"""Of a decimal, in Arrow and in Spark."""

MICROSECOND = dt.timedelta(microseconds=1)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = """
all alter and any as between by call case cast collate connect_by_root create cross current_catalog
current_date current_time current_timestamp current_user date desc distinct div drop else end
escape except execute exists explain extract false fetch for from full function glob grant group
having if ilike in inner insert intersect interval into is isnull join lateral left like limit
localtime localtimestamp not notnull null offset on optimize or order outer over overlaps
partitioned_by prepare qualify regexp release rename returning revoke right rlike rollback row
savepoint select session_user set show some straight_join struct table tablesample then time
timestamp true uncache union unnest using vacuum values when where window with xor
"""
"""Names that SQL reads as something other than a column. They are quoted."""

_WORDS = frozenset(_RESERVED.split())

_UNITS = (("DAY", 86_400_000_000), ("HOUR", 3_600_000_000), ("MINUTE", 60_000_000))
_SMALL_UNITS = (("SECOND", 1_000_000), ("MILLISECOND", 1000), ("MICROSECOND", 1))


@dataclass(frozen=True)
class ExpressionNode:
    """A node of an expression. `str` is its SQL text."""

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """The nodes that this one is computed from."""
        return ()

    @property
    def is_atom(self) -> bool:
        """True if the text needs no parentheses inside of another expression."""
        return True

    def fields(self) -> frozenset[str]:
        """Return the names of the fields that the expression reads, nested ones with dots."""
        return frozenset().union(*(part.fields() for part in self.parts))

    def inner(self) -> str:
        """Return the text for a place inside of another expression."""
        return str(self) if self.is_atom else f"({self})"


@dataclass(frozen=True)
class ColumnNode(ExpressionNode):
    """A field of the record, or a field of a nested record."""

    path: tuple[str, ...]

    def fields(self) -> frozenset[str]:
        """Return the name of the field."""
        return frozenset({".".join(self.path)})

    def __str__(self) -> str:
        return ".".join(map(_quoted, self.path))


@dataclass(frozen=True, eq=False)
class LiteralNode(ExpressionNode):
    """A constant: None, a bool, int, float, str, Decimal, date, datetime in UTC or timedelta."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LiteralNode) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[type, str]:
        """The type and text: 1, 1.0 and True are different, NaN is the same as NaN."""
        return type(self.value), repr(self.value)

    @property
    def is_atom(self) -> bool:
        """False for a negative number."""
        return not str(self).startswith("-")

    def __str__(self) -> str:
        value = self.value
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f"CAST('{value}' AS DOUBLE)"
        if isinstance(value, decimal.Decimal):
            digits, places = decimal_size(value)
            return f"CAST('{value:f}' AS DECIMAL({digits}, {places}))"
        if isinstance(value, dt.datetime):
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        if isinstance(value, dt.date):
            return f"DATE '{value.isoformat()}'"
        return _interval(value) if isinstance(value, dt.timedelta) else str(value)


class OperatorNode(ExpressionNode):
    """An operator with its operands, whose text needs parentheses inside of another expression."""

    @property
    def is_atom(self) -> bool:
        """False."""
        return False


@dataclass(frozen=True)
class BinaryNode(OperatorNode):
    """An operator of two operands: a comparison, arithmetic, `||`, or IS DISTINCT FROM."""

    operator: str
    left: ExpressionNode
    right: ExpressionNode

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """Both operands."""
        return (self.left, self.right)

    def __str__(self) -> str:
        return f"{self.left.inner()} {self.operator} {self.right.inner()}"


@dataclass(frozen=True)
class LogicNode(OperatorNode):
    """AND or OR of two or more conditions."""

    operator: str
    conditions: tuple[ExpressionNode, ...]

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """The conditions."""
        return self.conditions

    def __str__(self) -> str:
        texts = (_condition_text(each) for each in self.conditions)
        return f" {self.operator} ".join(texts)


@dataclass(frozen=True)
class UnaryNode(OperatorNode):
    """An operator of one operand: NOT, `-` before it, or IS NULL behind it."""

    operator: str
    operand: ExpressionNode

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """The operand."""
        return (self.operand,)

    def __str__(self) -> str:
        inner = self.operand.inner()
        if self.operator == "IS NULL":
            return f"{inner} IS NULL"
        if self.operator == "-":
            return f"-{inner}"
        return _negation(self.operand) or f"NOT {inner}"


@dataclass(frozen=True)
class InNode(OperatorNode):
    """Whether a value is among others."""

    operand: ExpressionNode
    options: tuple[ExpressionNode, ...]

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """The value, and the others."""
        return (self.operand, *self.options)

    def __str__(self) -> str:
        return f"{self.operand.inner()} IN ({', '.join(map(str, self.options))})"


@dataclass(frozen=True)
class LikeNode(OperatorNode):
    r"""Whether a text matches a pattern: `%` any characters, `_` one, `\` before either itself."""

    operand: ExpressionNode
    pattern: str

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """The text."""
        return (self.operand,)

    def __str__(self) -> str:
        return f"{self.operand.inner()} LIKE {_text(self.pattern)}"


@dataclass(frozen=True)
class CaseNode(ExpressionNode):
    """The value of the first branch whose condition is true, or else another value."""

    branches: tuple[tuple[ExpressionNode, ExpressionNode], ...]
    otherwise: ExpressionNode

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """Conditions and values in order, then the other value."""
        return (*(part for branch in self.branches for part in branch), self.otherwise)

    def __str__(self) -> str:
        branches = " ".join(f"WHEN {condition} THEN {of}" for condition, of in self.branches)
        return f"CASE {branches} ELSE {self.otherwise} END"


@dataclass(frozen=True)
class CallNode(ExpressionNode):
    """A call of a built-in function by its name in capital letters.

    `unit` is the part of a time for EXTRACT and DATE_TRUNC.
    """

    function: str
    arguments: tuple[ExpressionNode, ...]
    unit: str = ""

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """The arguments."""
        return self.arguments

    def __str__(self) -> str:
        given = ", ".join(map(str, self.arguments))
        if self.function == "EXTRACT":
            return f"EXTRACT({self.unit} FROM {given})"
        return (
            f"{self.function}('{self.unit}', {given})" if self.unit else f"{self.function}({given})"
        )


@dataclass(frozen=True)
class CastNode(ExpressionNode):
    """A value as another type, which has a name in SQL such as BIGINT or DECIMAL(12, 2)."""

    operand: ExpressionNode
    target: str

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """The value."""
        return (self.operand,)

    def __str__(self) -> str:
        return f"CAST({self.operand} AS {self.target})"


def logic(operator: str, *conditions: ExpressionNode) -> ExpressionNode:
    """Return AND or OR of conditions. Those of the same operator are merged into one node."""
    flat: list[ExpressionNode] = []
    for each in conditions:
        same = isinstance(each, LogicNode) and each.operator == operator
        flat += each.conditions if isinstance(each, LogicNode) and same else (each,)
    return LogicNode(operator, tuple(flat))


def minus(node: ExpressionNode) -> ExpressionNode:
    """Return the negative of an expression; of a number that is a constant, a constant."""
    if isinstance(node, LiteralNode) and type(node.value) in (int, float, decimal.Decimal):
        value = node.value
        if type(value) is not int or value != -(2**63):  # it has no negative of 64 bits
            return LiteralNode(-value if value or isinstance(value, float) else value)
    return UnaryNode("-", node)


def decimal_size(value: decimal.Decimal) -> tuple[int, int]:
    """Return the digits and the places of a finite Decimal, as for `Decimals`.

    >>> decimal_size(decimal.Decimal("-12.50")), decimal_size(decimal.Decimal("0.001"))
    ((4, 2), (3, 3))
    """
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    places = max(0, -exponent)
    return max(1, len(digits) + max(0, exponent), places), places


def plain_decimal(value: decimal.Decimal) -> decimal.Decimal:
    """Return a finite Decimal without a positive exponent, and without the sign of a zero.

    >>> plain_decimal(decimal.Decimal("1E+3")), plain_decimal(decimal.Decimal("-0.0"))
    (Decimal('1000'), Decimal('0.0'))
    """
    plain = decimal.Decimal(f"{value:f}")
    return plain if plain else plain.copy_abs()


def walk(node: ExpressionNode) -> Iterator[ExpressionNode]:
    """Yield a node and all nodes inside of it."""
    yield node
    for part in node.parts:
        yield from walk(part)


def _condition_text(node: ExpressionNode) -> str:
    """Return the text of a condition inside of AND or OR, where only those need parentheses."""
    return f"({node})" if isinstance(node, LogicNode) else str(node)


def _negation(node: ExpressionNode) -> str | None:
    """Return the text of a negated condition for which SQL has an operator of its own."""
    if isinstance(node, UnaryNode) and node.operator == "IS NULL":
        return f"{node.operand.inner()} IS NOT NULL"
    if isinstance(node, InNode | LikeNode):
        subject = node.operand.inner()
        return f"{subject} NOT{str(node).removeprefix(subject)}"
    if isinstance(node, BinaryNode) and node.operator == "IS DISTINCT FROM":
        return f"{node.left.inner()} IS NOT DISTINCT FROM {node.right.inner()}"
    return None


def _quoted(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name) and name.lower() not in _WORDS:
        return name
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _text(value: str) -> str:
    escaped = value.replace("'", "''")
    return f"'{escaped}'"


def _interval(value: dt.timedelta) -> str:
    micros = value // MICROSECOND
    unit, size = next(each for each in (*_UNITS, *_SMALL_UNITS) if micros % each[1] == 0)
    return f"INTERVAL '{micros // size}' {unit}"
