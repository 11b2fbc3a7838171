"""Expressions in Python: `col`, `lit` and `expr`, and the operators of their results."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable
from typing import Any, NoReturn

from statekit.errors import StateTypeError
from statekit.expressions.sql_text import tree_of_text
from statekit.expressions.tree import (
    MOST_DIGITS,
    BinaryNode,
    CallNode,
    CastNode,
    ColumnNode,
    ExpressionNode,
    InNode,
    LikeNode,
    LiteralNode,
    UnaryNode,
    decimal_size,
    logic,
    minus,
    plain_decimal,
)
from statekit.shown import shown

_LITERALS = (bool, int, float, str, decimal.Decimal, dt.date, dt.timedelta)


class Expression:
    """An expression over the fields of a record. Created by `col`, `lit` and `expr`.

    The operators of Python build larger expressions: `+ - * / %`, comparisons, `&`, `|` and `~` for
    AND, OR and NOT. `str` is the SQL text. As `==` builds a comparison, `equals` compares two
    expressions by their structure.

    >>> large = (col("cents") > 1000) & ~col("country").is_in(["de", "fr"])
    >>> print(large)
    cents > 1000 AND country NOT IN ('de', 'fr')
    >>> sorted(large.fields())
    ['cents', 'country']
    >>> large.equals(expr(str(large)))
    True
    """

    __slots__ = ("tree",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tree: ExpressionNode) -> None:
        self.tree = tree

    def __str__(self) -> str:
        return str(self.tree)

    def __repr__(self) -> str:
        return f"<Expression {self.tree}>"

    def __bool__(self) -> NoReturn:
        raise StateTypeError(
            f"the expression {self.tree} has no truth value before it is computed: combine "
            "conditions with &, | and ~ in parentheses instead of and, or and not"
        )

    def equals(self, other: Expression) -> bool:
        """Return whether another expression has the same structure."""
        return self.tree == other.tree

    def fields(self) -> frozenset[str]:
        """Return the names of the fields that it reads, nested ones with dots."""
        return self.tree.fields()

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return self._with("=", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return self._with("<>", other)

    def __lt__(self, other: object) -> Expression:
        return self._with("<", other)

    def __le__(self, other: object) -> Expression:
        return self._with("<=", other)

    def __gt__(self, other: object) -> Expression:
        return self._with(">", other)

    def __ge__(self, other: object) -> Expression:
        return self._with(">=", other)

    def __add__(self, other: object) -> Expression:
        return self._with("+", other)

    def __radd__(self, other: object) -> Expression:
        return lit(other)._with("+", self)

    def __sub__(self, other: object) -> Expression:
        return self._with("-", other)

    def __rsub__(self, other: object) -> Expression:
        return lit(other)._with("-", self)

    def __mul__(self, other: object) -> Expression:
        return self._with("*", other)

    def __rmul__(self, other: object) -> Expression:
        return lit(other)._with("*", self)

    def __truediv__(self, other: object) -> Expression:
        return self._with("/", other)

    def __rtruediv__(self, other: object) -> Expression:
        return lit(other)._with("/", self)

    def __mod__(self, other: object) -> Expression:
        return self._with("%", other)

    def __rmod__(self, other: object) -> Expression:
        return lit(other)._with("%", self)

    def __neg__(self) -> Expression:
        return Expression(minus(self.tree))

    def __and__(self, other: object) -> Expression:
        return Expression(logic("AND", self.tree, lit(other).tree))

    def __rand__(self, other: object) -> Expression:
        return lit(other) & self

    def __or__(self, other: object) -> Expression:
        return Expression(logic("OR", self.tree, lit(other).tree))

    def __ror__(self, other: object) -> Expression:
        return lit(other) | self

    def __invert__(self) -> Expression:
        return Expression(UnaryNode("NOT", self.tree))

    def concat(self, other: object) -> Expression:
        """Return this text followed by another: `||` of SQL."""
        return self._with("||", other)

    def is_null(self) -> Expression:
        """Return whether the value is NULL."""
        return Expression(UnaryNode("IS NULL", self.tree))

    def is_not_null(self) -> Expression:
        """Return whether the value is not NULL."""
        return ~self.is_null()

    def is_distinct_from(self, other: object) -> Expression:
        """Return whether the values differ, where NULL is a value that equals itself."""
        return self._with("IS DISTINCT FROM", other)

    def is_in(self, options: Iterable[object]) -> Expression:
        """Return whether the value is one of others.

        Raises:
            StateTypeError: there are none, or they are one text.
        """
        is_text = isinstance(options, str)
        given = () if is_text else tuple(lit(option).tree for option in options)
        if not given:
            raise StateTypeError(f"{self.tree} is_in() has no values: give a list of them")
        return Expression(InNode(self.tree, given))

    def between(self, low: object, high: object) -> Expression:
        """Return whether the value is from `low` to `high`, both included."""
        return (self >= low) & (self <= high)

    def like(self, pattern: str) -> Expression:
        r"""Return whether the text matches a pattern: `%` stands for any characters, `_` for one,
        `\\` before either for itself.

        Raises:
            StateTypeError: the pattern is no text.
        """
        if type(pattern) is not str:
            raise StateTypeError(f"{self.tree} like({shown(pattern)}): give a text")
        return Expression(LikeNode(self.tree, pattern))

    def cast(self, target: str) -> Expression:
        """Return the value as another type, such as "BIGINT" or "DECIMAL(12, 2)".

        Raises:
            StateTypeError: this is no type.
        """
        node = tree_of_text(f"CAST(x AS {target})")
        if not isinstance(node, CastNode):
            raise StateTypeError(f"cast({shown(target)}): name one type, such as BIGINT")
        return Expression(CastNode(self.tree, node.target))

    def coalesce(self, *others: object) -> Expression:
        """Return the first value that is not NULL, of this and others."""
        return Expression(CallNode("COALESCE", (self.tree, *(lit(each).tree for each in others))))

    def _with(self, operator: str, other: object) -> Expression:
        return Expression(BinaryNode(operator, self.tree, lit(other).tree))


def col(name: str) -> Expression:
    """Return the expression that reads a field; "customer.country" reads that of a nested record.

    Raises:
        StateTypeError: this is no name.

    >>> print(col("cents") / 100)
    cents / 100
    """
    if type(name) is not str or not all(name.split(".")):
        raise StateTypeError(f"col({shown(name)}): give the name of a field")
    return Expression(ColumnNode(tuple(name.split("."))))


def lit(value: object) -> Expression:
    """Return a constant as an expression; an expression unchanged.

    Raises:
        StateTypeError: the value has no type of the language, or is a datetime without a time zone.

    >>> print(lit(dt.timedelta(hours=2)))
    INTERVAL '2' HOUR
    """
    if isinstance(value, Expression):
        return value
    fault = _literal_fault(value)
    if fault:
        raise StateTypeError(f"{shown(value)} is no constant of an expression: {fault}")
    if isinstance(value, dt.datetime):
        value = value.astimezone(dt.UTC).replace(fold=0)
    if isinstance(value, decimal.Decimal):
        value = plain_decimal(value)
    return Expression(LiteralNode(value))


def _literal_fault(value: object) -> str:
    if value is None:
        return ""
    if type(value) not in (*_LITERALS, dt.datetime):
        return "use None, a bool, int, float, str, Decimal, date, datetime or timedelta"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "integers have 64 bits; use a Decimal or a float"
    if isinstance(value, decimal.Decimal):
        fits = value.is_finite() and decimal_size(plain_decimal(value))[0] <= MOST_DIGITS
        return "" if fits else f"a Decimal must be finite, with at most {MOST_DIGITS} digits"
    if isinstance(value, dt.datetime) and value.utcoffset() is None:
        return "give it a time zone, such as tzinfo=datetime.UTC"
    return ""


def expr(text: str) -> Expression:
    """Parse SQL text as an expression.

    Raises:
        StateTypeError: the text is no expression, or has something that the language lacks; the
            message lists the functions that exist.

    >>> print(expr("coalesce(discount, 0) between 1 and 5"))
    COALESCE(discount, 0) >= 1 AND COALESCE(discount, 0) <= 5
    """
    if type(text) is not str:
        raise StateTypeError(f"expr({shown(text)}): give SQL text")
    return Expression(tree_of_text(text))


def as_expression(given: Any) -> Expression:
    """Return an expression unchanged, and parse SQL text."""
    return given if isinstance(given, Expression) else expr(given)
