"""SQL text as trees of expressions. sqlglot parses the text; this module takes the nodes that the
language has, and refuses the rest.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any, NoReturn

from statekit.errors import StateTypeError
from statekit.expressions.tree import (
    MOST_DIGITS,
    BinaryNode,
    CallNode,
    CaseNode,
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

FUNCTIONS = (
    "ABS(n), CEIL(n), FLOOR(n), COALESCE(a, b, …), NULLIF(a, b), LENGTH(text), LOWER(text), "
    "UPPER(text), DATE_TRUNC('hour', time), EXTRACT(hour FROM time), CAST(a AS type)"
)
"""All functions, for messages and docs."""

TRUNC_UNITS = ("SECOND", "MINUTE", "HOUR", "DAY")
EXTRACT_UNITS = ("YEAR", "MONTH", "DAY", "HOUR", "MINUTE")

_BINARY = {
    "EQ": "=",
    "NEQ": "<>",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "/",
    "Mod": "%",
    "DPipe": "||",
    "NullSafeNEQ": "IS DISTINCT FROM",
}
_CALLS = {"Abs": "ABS", "Ceil": "CEIL", "Floor": "FLOOR", "Length": "LENGTH"}
_CALLS |= {"Lower": "LOWER", "Upper": "UPPER"}
_TYPES = {
    **dict.fromkeys(("BIGINT", "INT", "INT64"), "BIGINT"),
    **dict.fromkeys(("DOUBLE", "FLOAT64"), "DOUBLE"),
    **dict.fromkeys(("TEXT", "VARCHAR", "STRING"), "VARCHAR"),
    "DATE": "DATE",
}
_INSTANTS = ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ")
_MICROS = {
    "WEEK": 604_800_000_000,
    "DAY": 86_400_000_000,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
    "MILLISECOND": 1000,
    "MICROSECOND": 1,
}
_MOST_NESTED = 100


def tree_of_text(text: str) -> ExpressionNode:
    """Parse SQL text as an expression.

    Raises:
        StateTypeError: the text is no expression, or has something that the language lacks.

    >>> print(tree_of_text("a between 1 and 2 or not b like 'x%'"))
    (a >= 1 AND a <= 2) OR b NOT LIKE 'x%'
    >>> tree_of_text("round(price, 2)")
    Traceback (most recent call last):
    statekit.errors.StateTypeError: expression 'round(price, 2)': ROUND(price, 2) is not in the \
language of expressions. Its functions are ABS(n), CEIL(n), FLOOR(n), COALESCE(a, b, …), \
NULLIF(a, b), LENGTH(text), LOWER(text), UPPER(text), DATE_TRUNC('hour', time), \
EXTRACT(hour FROM time), CAST(a AS type)
    """
    # Imported here, as workers compute expressions without parsing one.
    import sqlglot
    from sqlglot.errors import SqlglotError
    from sqlglot.expressions import Condition

    try:
        return _Reader(text).node(sqlglot.parse_one(text, into=Condition), 0)
    except RecursionError:
        raise StateTypeError(
            f"expression {shown(text)}: its parentheses are nested too deep: leave out those that "
            "it does not need, or compute a part in a select() before"
        ) from None
    except SqlglotError as error:
        found = [each.get("description") for each in getattr(error, "errors", ())]
        why = next(filter(None, found), "it cannot be read as one expression")
        raise StateTypeError(
            f"expression {shown(text)} is not SQL: {why} (a field whose name is a word of SQL is "
            'written in double quotes: "release")'
        ) from None


class _Reader:
    """Converts the syntax tree of a text.

    Parameters:
        text: for messages.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def node(self, found: Any, depth: int) -> ExpressionNode:
        """Return the node of a part of the syntax tree."""
        if depth > _MOST_NESTED:
            self._refuse(f"it is nested more than {_MOST_NESTED} levels deep")
        kind = type(found).__name__
        read: Callable[[Any, int], ExpressionNode] | None = getattr(
            self, f"_read_{kind.lower()}", None
        )
        if read is not None:
            return read(found, depth + 1)
        if kind in _BINARY:
            left, right = self._two(found, depth)
            return BinaryNode(_BINARY[kind], left, right)
        if kind in _CALLS:
            self._only(found, "this")
            return CallNode(_CALLS[kind], (self.node(found.this, depth + 1),))
        return self._refuse_part(found)

    def _only(self, found: Any, *names: str) -> None:
        """Refuse arguments of a function beside these."""
        if any(value and name not in names for name, value in found.args.items()):
            self._refuse_part(found)

    def _two(self, found: Any, depth: int) -> tuple[ExpressionNode, ExpressionNode]:
        return self.node(found.this, depth + 1), self.node(found.expression, depth + 1)

    def _read_paren(self, found: Any, depth: int) -> ExpressionNode:
        return self.node(found.this, depth)

    def _read_and(self, found: Any, depth: int) -> ExpressionNode:
        return self._logic("AND", found, depth)

    def _read_or(self, found: Any, depth: int) -> ExpressionNode:
        return self._logic("OR", found, depth)

    def _logic(self, operator: str, found: Any, depth: int) -> ExpressionNode:
        """Read a chain of AND or OR, which may be long, without a level for each."""
        kind, chain = type(found), []
        while type(found) is kind:
            chain.append(found.expression)
            found = found.this
        return logic(operator, *(self.node(each, depth) for each in (found, *reversed(chain))))

    def _read_not(self, found: Any, depth: int) -> ExpressionNode:
        return UnaryNode("NOT", self.node(found.this, depth))

    def _read_neg(self, found: Any, depth: int) -> ExpressionNode:
        if type(found.this).__name__ == "Literal" and not found.this.is_string:
            return self._number(f"-{found.this.this}")
        return minus(self.node(found.this, depth))

    def _read_column(self, found: Any, depth: int) -> ExpressionNode:
        parts = [each for each in found.parts if type(each).__name__ == "Identifier"]
        if len(parts) != len(found.parts):
            self._refuse_part(found)
        return ColumnNode(tuple(part.this for part in parts))

    def _read_dot(self, found: Any, depth: int) -> ExpressionNode:
        record = self.node(found.this, depth)
        if not isinstance(record, ColumnNode) or type(found.expression).__name__ != "Identifier":
            self._refuse_part(found)
        return ColumnNode((*record.path, found.expression.this))

    def _read_null(self, found: Any, depth: int) -> ExpressionNode:
        return LiteralNode(None)

    def _read_boolean(self, found: Any, depth: int) -> ExpressionNode:
        return LiteralNode(bool(found.this))

    def _read_literal(self, found: Any, depth: int) -> ExpressionNode:
        return LiteralNode(found.this) if found.is_string else self._number(found.this)

    def _number(self, text: str) -> ExpressionNode:
        if text.removeprefix("-").isdigit():
            whole = int(text)
            if not -(2**63) <= whole < 2**63:
                self._refuse(f"{text} does not fit into 64 bits: use CAST('{text}' AS DECIMAL(…))")
            return LiteralNode(whole)
        return LiteralNode(float(text))

    def _read_is(self, found: Any, depth: int) -> ExpressionNode:
        operand, value = self._two(found, depth)
        if value == LiteralNode(None):
            return UnaryNode("IS NULL", operand)
        return UnaryNode("NOT", BinaryNode("IS DISTINCT FROM", operand, value))

    def _read_nullsafeeq(self, found: Any, depth: int) -> ExpressionNode:
        return UnaryNode("NOT", BinaryNode("IS DISTINCT FROM", *self._two(found, depth)))

    def _read_in(self, found: Any, depth: int) -> ExpressionNode:
        options = found.expressions
        if not options or any(found.args.get(name) for name in ("query", "unnest", "field")):
            self._refuse_part(found)
        given = tuple(self.node(each, depth) for each in options)
        return InNode(self.node(found.this, depth), given)

    def _read_between(self, found: Any, depth: int) -> ExpressionNode:
        if found.args.get("symmetric"):
            self._refuse_part(found)
        operand = self.node(found.this, depth)
        low, high = (self.node(found.args[end], depth) for end in ("low", "high"))
        return logic("AND", BinaryNode(">=", operand, low), BinaryNode("<=", operand, high))

    def _read_like(self, found: Any, depth: int) -> ExpressionNode:
        operand, pattern = self._two(found, depth)
        if not isinstance(pattern, LiteralNode) or not isinstance(pattern.value, str):
            self._refuse("LIKE takes a pattern that is a constant text")
        like: ExpressionNode = LikeNode(operand, pattern.value)
        return UnaryNode("NOT", like) if found.args.get("negate") else like

    def _read_escape(self, found: Any, depth: int) -> ExpressionNode:
        if self.node(found.expression, depth) != LiteralNode("\\"):
            self._refuse("the escape character of LIKE is the backslash")
        return self.node(found.this, depth)

    def _read_case(self, found: Any, depth: int) -> ExpressionNode:
        subject = None if found.this is None else self.node(found.this, depth)
        branches = []
        for branch in found.args["ifs"]:
            condition = self.node(branch.this, depth)
            if subject is not None:
                condition = BinaryNode("=", subject, condition)
            branches.append((condition, self.node(branch.args["true"], depth)))
        default = found.args.get("default")
        otherwise = LiteralNode(None) if default is None else self.node(default, depth)
        return CaseNode(tuple(branches), otherwise)

    def _read_coalesce(self, found: Any, depth: int) -> ExpressionNode:
        given = (found.this, *found.expressions)
        return CallNode("COALESCE", tuple(self.node(each, depth) for each in given))

    def _read_nullif(self, found: Any, depth: int) -> ExpressionNode:
        value, other = self._two(found, depth)
        return CaseNode(((BinaryNode("=", value, other), LiteralNode(None)),), value)

    def _read_datetrunc(self, found: Any, depth: int) -> ExpressionNode:
        self._only(found, "this", "unit", "input_type_preserved")
        return self._of_time("DATE_TRUNC", found.args["unit"], found.this, TRUNC_UNITS, depth)

    def _read_timestamptrunc(self, found: Any, depth: int) -> ExpressionNode:
        return self._read_datetrunc(found, depth)

    def _read_extract(self, found: Any, depth: int) -> ExpressionNode:
        return self._of_time("EXTRACT", found.this, found.expression, EXTRACT_UNITS, depth)

    def _of_time(
        self, name: str, unit: Any, time: Any, units: tuple[str, ...], depth: int
    ) -> CallNode:
        given = str(unit.this).upper()
        if given not in units:
            self._refuse(f"{name} takes {', '.join(units)}, not {given}")
        small = given.lower() if name == "DATE_TRUNC" else given
        return CallNode(name, (self.node(time, depth),), small)

    def _read_interval(self, found: Any, depth: int) -> ExpressionNode:
        unit = str(getattr(found.args.get("unit"), "this", "")).upper().removesuffix("S")
        number = found.this
        is_minus = type(number).__name__ == "Neg"
        text = str(getattr(number.this if is_minus else number, "this", ""))
        if unit not in _MICROS or not text.removeprefix("-").isdigit():
            self._refuse(f"an interval is a whole number of {', '.join(_MICROS)}: INTERVAL '2' DAY")
        try:
            length = dt.timedelta(microseconds=int(text) * _MICROS[unit])
        except OverflowError:
            self._refuse(f"the interval of {text} {unit} is too long")
        return LiteralNode(-length if is_minus else length)

    def _read_cast(self, found: Any, depth: int) -> ExpressionNode:
        """Read a CAST. That of a text to a date, time or decimal is a constant."""
        to = found.args["to"]
        name = getattr(to.this, "name", str(to.this))
        operand = self.node(found.this, depth)
        text = operand.value if isinstance(operand, LiteralNode) else None
        if name in _INSTANTS and isinstance(text, str):
            return LiteralNode(self._of_text(text, _instant))
        if name == "DATE" and isinstance(text, str):
            return LiteralNode(self._of_text(text, dt.date.fromisoformat))
        if name == "DECIMAL":
            return self._decimal(operand, [int(each.name) for each in to.expressions])
        if name == "DOUBLE" and text in ("nan", "inf", "-inf"):
            return LiteralNode(float(text))
        if name not in _TYPES or to.expressions:
            self._refuse(
                f"there is no CAST to {to.sql()}: use BIGINT, DOUBLE, DECIMAL(12, 2), VARCHAR or "
                "DATE"
            )
        return CastNode(operand, _TYPES[name])

    def _decimal(self, operand: ExpressionNode, sizes: list[int]) -> ExpressionNode:
        digits, places = (*sizes, 0)[:2] if sizes else (0, 0)
        if not 0 < digits <= MOST_DIGITS or not 0 <= places <= digits:
            self._refuse(f"a DECIMAL has 1 to {MOST_DIGITS} digits: write DECIMAL(12, 2)")
        target = f"DECIMAL({digits}, {places})"
        if not isinstance(operand, LiteralNode) or not isinstance(operand.value, str):
            return CastNode(operand, target)
        value = plain_decimal(self._of_text(operand.value, _finite))
        if decimal_size(value) == (digits, places):
            return LiteralNode(value)
        return CastNode(LiteralNode(value), target)

    def _of_text(self, text: str, convert: Callable[[str], Any]) -> Any:
        try:
            return convert(text)
        except (ValueError, ArithmeticError, OverflowError):
            self._refuse(f"{shown(text)} cannot be read as this type")

    def _refuse_part(self, found: Any) -> NoReturn:
        self._refuse(
            f"{found.sql()} is not in the language of expressions. Its functions are {FUNCTIONS}"
        )

    def _refuse(self, why: str) -> NoReturn:
        raise StateTypeError(f"expression {shown(self._text)}: {why}")


def _instant(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)


def _finite(text: str) -> decimal.Decimal:
    found = decimal.Decimal(text)
    if not found.is_finite() or decimal_size(plain_decimal(found))[0] > MOST_DIGITS:
        raise ValueError("no decimal of SQL")
    return found
