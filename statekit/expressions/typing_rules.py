"""Rules of types: check an expression against a record class, and make it a `Typed` tree."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any, NoReturn

from statekit.errors import StateTypeError
from statekit.expressions.like_pattern import pattern_fault
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
    LogicNode,
    UnaryNode,
    plain_decimal,
)
from statekit.expressions.typed import TAKES_NULL, Operation, Typed
from statekit.expressions.value_types import (
    ValueType,
    field_annotations,
    nested_class,
    type_of_annotation,
    type_of_value,
)

_NUMBERS = ("int", "decimal", "float")
_ORDERED = (*_NUMBERS, "text", "date", "timestamp", "interval")
_INT_DIGITS = 19
_INT_AS_DECIMAL = ValueType("decimal", False, _INT_DIGITS, 0)
_BOOL = ValueType("bool")
_NULL = ValueType("null", nullable=True)
_MOST_LEVELS = 60

_COMPARISONS: dict[str, tuple[Operation, bool]] = {
    "=": ("equal", False),
    "<>": ("equal", False),
    "<": ("less", False),
    "<=": ("less_equal", False),
    ">": ("less", True),
    ">=": ("less_equal", True),
    "IS DISTINCT FROM": ("distinct", False),
}
"""The operation of each comparison, and whether it swaps the operands."""

_ARITHMETIC: dict[str, Operation] = {
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "divide",
    "%": "modulo",
}
_TIMES: dict[tuple[str, str, str], Operation] = {
    ("timestamp", "+", "interval"): "later",
    ("timestamp", "-", "interval"): "earlier",
    ("timestamp", "-", "timestamp"): "between_times",
}
_CASTS: dict[tuple[str, str], Operation] = {
    ("int", "DOUBLE"): "to_float",
    ("decimal", "DOUBLE"): "to_float",
    ("text", "DOUBLE"): "to_float",
    ("float", "BIGINT"): "to_int",
    ("text", "BIGINT"): "to_int",
    ("int", "VARCHAR"): "to_text",
    ("timestamp", "DATE"): "to_date",
}
_RESULTS = {
    "BIGINT": ValueType("int"),
    "DOUBLE": ValueType("float"),
    "VARCHAR": ValueType("text"),
    "DATE": ValueType("date"),
}


def typed_tree(node: ExpressionNode, cls: Any, where: str) -> Typed:
    """Check an expression against a record class.

    Parameters:
        cls: the class of the records.
        where: the declaration, for messages.

    Raises:
        StateTypeError: there is no such field, or types do not fit.
    """
    return _Rules(cls, where).typed(node)


def converted(typed: Typed, wanted: ValueType) -> Typed | None:
    """Return the expression as a value of another type; None if not every value has one.

    An int becomes a float or a decimal; a float that is a constant becomes a decimal, too.
    """
    found, nullable = typed.type, typed.type.nullable
    if found.kind == "null":
        return Typed("literal", (), wanted.with_null(), typed.node, None)
    if wanted.kind == "decimal" and typed.is_constant and found.kind in ("int", "float"):
        return _decimal_constant(typed, wanted)
    if found.kind == wanted.kind and found.kind != "decimal":
        return typed
    if (found.kind, wanted.kind) == ("int", "float"):
        return _made("to_float", (typed,), wanted.with_null(nullable), typed.node)
    if wanted.kind == "decimal" and found.kind in ("int", "decimal"):
        if found == wanted.with_null(nullable):
            return typed
        if wanted.holds(found if found.kind == "decimal" else _INT_AS_DECIMAL):
            return _made("to_decimal", (typed,), wanted.with_null(nullable), typed.node)
    return None


def _decimal_constant(typed: Typed, wanted: ValueType) -> Typed | None:
    size = _as_decimal(typed)
    if size is None or not wanted.holds(size):
        return None
    if typed.value is None:
        return Typed("literal", (), wanted.with_null(), typed.node, None)
    value = plain_decimal(decimal.Decimal(repr(typed.value)))
    return Typed("literal", (), wanted.with_null(False), typed.node, value)


def _made(
    operation: Operation,
    operands: tuple[Typed, ...],
    type_: ValueType,
    node: ExpressionNode,
    value: Any = None,
) -> Typed:
    """Return an operation, or NULL if it has a constant NULL as operand, of which it is NULL."""
    if operation not in TAKES_NULL and any(each.is_null for each in operands):
        return Typed("literal", (), type_.with_null(), node, None)
    return Typed(operation, operands, type_, node, value)


class _Rules:
    """The rules for expressions over the records of one class."""

    def __init__(self, cls: Any, where: str) -> None:
        self._cls, self._where = cls, where
        self._level = 0

    def typed(self, node: ExpressionNode) -> Typed:
        """Return the typed tree of a node."""
        self._level += 1
        if self._level > _MOST_LEVELS:
            raise StateTypeError(
                f"{self._where}: the expression is nested more than {_MOST_LEVELS} levels deep: "
                "split it, or use a function"
            )
        rule: Callable[[Any], Typed] = getattr(self, f"_{type(node).__name__}")
        found = rule(node)
        self._level -= 1
        return found

    # -------------------------------------------------------------------- fields and constants

    def _ColumnNode(self, node: ColumnNode) -> Typed:  # noqa: N802 - named like the nodes
        cls, nullable, found = self._cls, False, ValueType("other")
        for place, name in enumerate(node.path):
            fields = {} if cls is None else field_annotations(cls)
            if name not in fields:
                of = ".".join(node.path[:place]) or getattr(self._cls, "__name__", str(self._cls))
                has = f"it has {', '.join(fields)}" if fields else "it is no record with fields"
                self._refuse(node, f"{of} has no field {name!r} ({has})")
            annotation, may_lack = fields[name]
            found, cls = type_of_annotation(annotation), nested_class(annotation)
            nullable = nullable or found.nullable or may_lack
        return Typed("column", (), found.with_null(nullable), node, node.path)

    def _LiteralNode(self, node: LiteralNode) -> Typed:  # noqa: N802
        return Typed("literal", (), type_of_value(node.value), node, node.value)

    def _constant(self, value: Any, node: ExpressionNode) -> Typed:
        return Typed("literal", (), type_of_value(value), node, value)

    # ----------------------------------------------------------------------------- conditions

    def _LogicNode(self, node: LogicNode) -> Typed:  # noqa: N802
        parts = tuple(self._condition(each) for each in node.conditions)
        nullable = any(part.type.nullable for part in parts)
        operation: Operation = "and" if node.operator == "AND" else "or"
        return _made(operation, parts, _BOOL.with_null(nullable), node)

    def _condition(self, node: ExpressionNode) -> Typed:
        found = self.typed(node)
        as_bool = converted(found, _BOOL)
        if as_bool is None:
            self._refuse(node, f"it is {found.type} where a condition is needed")
        return as_bool

    def _UnaryNode(self, node: UnaryNode) -> Typed:  # noqa: N802
        if node.operator == "NOT":
            return self._not(self._condition(node.operand), node)
        operand = self.typed(node.operand)
        if node.operator == "IS NULL":
            return _made("is_null", (operand,), _BOOL, node)
        self._check_number(operand, node)
        if operand.type.kind == "null":
            return operand
        return _made("negate", (operand,), operand.type, node)

    def _not(self, condition: Typed, node: ExpressionNode) -> Typed:
        return _made("not", (condition,), condition.type, node)

    def _BinaryNode(self, node: BinaryNode) -> Typed:  # noqa: N802
        left, right = self.typed(node.left), self.typed(node.right)
        if node.operator in _COMPARISONS:
            return self._compared(left, right, node.operator, node)
        if node.operator == "||":
            return self._texts("concat", (left, right), ValueType("text"), node)
        return self._computed(left, right, node)

    def _compared(self, left: Typed, right: Typed, operator: str, node: ExpressionNode) -> Typed:
        operation, swaps = _COMPARISONS[operator]
        left, right = self._alike((left, right), node, "compared")
        kind = left.type.kind
        if kind == "null":
            return self._constant(False if operation == "distinct" else None, node)
        if kind == "other" or (operation.startswith("less") and kind not in _ORDERED):
            self._refuse(node, f"{left.type} is not compared with {operator}")
        nullable = (left.type.nullable or right.type.nullable) and operation != "distinct"
        operands = (right, left) if swaps else (left, right)
        found = _made(operation, operands, _BOOL.with_null(nullable), node)
        return self._not(found, node) if operator == "<>" else found

    def _InNode(self, node: InNode) -> Typed:  # noqa: N802
        operand, options = self.typed(node.operand), tuple(map(self.typed, node.options))
        operand, *alike = self._alike((operand, *options), node, "compared")
        constants = [each for each in alike if each.is_constant and each.value is not None]
        others = [each for each in alike if each not in constants]
        if operand.type.kind in ("float", "null"):  # NaN equals NaN
            constants, others = [], list(alike)
        found = [self._compared(operand, each, "=", node) for each in others]
        if constants:
            values = tuple(each.value for each in constants)
            found.append(
                _made("in", (operand,), _BOOL.with_null(operand.type.nullable), node, values)
            )
        if len(found) == 1:
            return found[0]
        nullable = any(each.type.nullable for each in found)
        return _made("or", tuple(found), _BOOL.with_null(nullable), node)

    def _LikeNode(self, node: LikeNode) -> Typed:  # noqa: N802
        if fault := pattern_fault(node.pattern):
            self._refuse(node, fault)
        return self._texts("like", (self.typed(node.operand),), _BOOL, node, node.pattern)

    # ----------------------------------------------------------------------------- arithmetic

    def _computed(self, left: Typed, right: Typed, node: BinaryNode) -> Typed:
        kinds = (left.type.kind, node.operator, right.type.kind)
        nullable = left.type.nullable or right.type.nullable
        if kinds in _TIMES:
            result = ValueType("interval" if kinds[2] == "timestamp" else "timestamp", nullable)
            return _made(_TIMES[kinds], (left, right), result, node)
        for operand in (left, right):
            self._check_number(operand, node)
        operation = _ARITHMETIC[node.operator]
        left, right = self._alike_numbers(left, right, node)
        kind = left.type.kind
        if kind == "null":
            return self._constant(None, node)
        if kind == "decimal":
            return self._decimals(operation, left, right, node)
        if operation == "divide":
            as_floats = [converted(each, ValueType("float")) for each in (left, right)]
            floats = tuple(each for each in as_floats if each is not None)
            return _made("divide", floats, ValueType("float", nullable), node)
        if operation == "modulo" and kind != "int":
            self._refuse(node, f"% takes BIGINT, not {left.type}")
        return _made(operation, (left, right), left.type.with_null(nullable), node)

    def _alike_numbers(
        self, left: Typed, right: Typed, node: ExpressionNode
    ) -> tuple[Typed, Typed]:
        """Return numbers of one kind. Decimals keep their digits and places."""
        kinds = {left.type.kind, right.type.kind}
        if "decimal" not in kinds:
            left, right = self._alike((left, right), node, "computed")
            return left, right
        pair = []
        for each in (left, right):
            size = _as_decimal(each)
            found = None if size is None else converted(each, size)
            if found is None:
                self._refuse_mix((left, right), node, "computed")
            pair.append(found)
        return pair[0], pair[1]

    def _decimals(
        self, operation: Operation, left: Typed, right: Typed, node: ExpressionNode
    ) -> Typed:
        """Return decimal arithmetic that is exact: the result has all digits of its operands."""
        one, two = left.type, right.type
        if operation in ("divide", "modulo"):
            self._refuse(node, "decimals are not divided: use CAST(… AS DOUBLE) for both operands")
        if operation == "multiply":
            digits, places = one.digits + two.digits + 1, one.places + two.places
        else:
            places = max(one.places, two.places)
            digits = max(one.digits - one.places, two.digits - two.places) + places + 1
        self._check_digits(digits, node)
        result = ValueType("decimal", one.nullable or two.nullable, digits, places)
        return _made(operation, (left, right), result, node)

    def _check_digits(self, digits: int, node: ExpressionNode) -> None:
        if digits > MOST_DIGITS:
            self._refuse(
                node,
                f"it needs decimals of {digits} digits, and they have at most {MOST_DIGITS}: "
                "declare the fields with fewer, as in Annotated[Decimal, sk.Decimals(12, 2)], or "
                "use CAST(… AS DOUBLE)",
            )

    def _check_number(self, operand: Typed, node: ExpressionNode) -> None:
        if operand.type.kind not in (*_NUMBERS, "null"):
            self._refuse(node, f"{operand.node} is {operand.type} and no number")

    # ------------------------------------------------------------------- branches and functions

    def _CaseNode(self, node: CaseNode) -> Typed:  # noqa: N802
        conditions = [self._condition(condition) for condition, _ in node.branches]
        given = [self.typed(value) for _, value in node.branches]
        values = self._alike((*given, self.typed(node.otherwise)), node, "results of one CASE")
        if values[0].type.kind == "null":
            return self._constant(None, node)
        pairs = zip(conditions, values, strict=False)
        operands = (*(part for pair in pairs for part in pair), values[-1])
        nullable = any(value.type.nullable for value in values)
        return _made("case", operands, values[0].type.with_null(nullable), node)

    def _CallNode(self, node: CallNode) -> Typed:  # noqa: N802
        operands = tuple(map(self.typed, node.arguments))
        name, (first, *_) = node.function, operands
        if name == "COALESCE":
            alike = self._alike(operands, node, "arguments of one COALESCE")
            if alike[0].type.kind == "null":
                return alike[0]
            nullable = all(each.type.nullable for each in alike)
            return _made("coalesce", alike, alike[0].type.with_null(nullable), node)
        if name in ("LOWER", "UPPER"):
            return self._texts("lower" if name == "LOWER" else "upper", operands, first.type, node)
        if name == "LENGTH":
            return self._texts("length", operands, ValueType("int"), node)
        if name in ("DATE_TRUNC", "EXTRACT"):
            return self._of_time(first, node)
        self._check_number(first, node)
        if first.type.kind == "null" or (first.type.kind == "int" and name != "ABS"):
            return first
        if name == "ABS":
            return _made("abs", operands, first.type, node)
        if first.type.kind == "decimal":
            self._refuse(node, f"{name} takes BIGINT or DOUBLE: use CAST(… AS DOUBLE)")
        return _made("floor" if name == "FLOOR" else "ceil", operands, first.type, node)

    def _of_time(self, time: Typed, node: CallNode) -> Typed:
        operation: Operation = "trunc" if node.function == "DATE_TRUNC" else "extract"
        kinds = ["timestamp"]
        if node.unit in ("YEAR", "MONTH", "DAY"):
            kinds.append("date")
        if time.type.kind not in kinds:
            self._refuse(node, f"{time.node} is {time.type} and no {' or '.join(kinds).upper()}")
        result = time.type if operation == "trunc" else ValueType("int", time.type.nullable)
        return _made(operation, (time,), result, node, node.unit)

    def _texts(
        self,
        operation: Operation,
        operands: tuple[Typed, ...],
        result: ValueType,
        node: ExpressionNode,
        value: Any = None,
    ) -> Typed:
        texts = []
        for operand in operands:
            text = converted(operand, ValueType("text"))
            if text is None:
                self._refuse(node, f"{operand.node} is {operand.type} and no VARCHAR")
            texts.append(text)
        nullable = any(text.type.nullable for text in texts)
        kind = ValueType("text") if result.kind == "null" else result
        return _made(operation, tuple(texts), kind.with_null(nullable), node, value)

    def _CastNode(self, node: CastNode) -> Typed:  # noqa: N802
        operand = self.typed(node.operand)
        if node.target.startswith("DECIMAL"):
            digits, places = node.target[8:-1].split(", ")
            wanted = ValueType("decimal", operand.type.nullable, int(digits), int(places))
        else:
            wanted = _RESULTS[node.target].with_null(operand.type.nullable)
        operation = _CASTS.get((operand.type.kind, node.target))
        if operation is not None:
            return _made(operation, (operand,), wanted, node)
        found = converted(operand, wanted)
        if found is None:
            self._refuse(
                node,
                f"{operand.type} has no CAST to {wanted} that is exact for every value: use a "
                "function with map()",
            )
        return found

    # --------------------------------------------------------------------------- one type of many

    def _alike(
        self, given: tuple[Typed, ...], node: ExpressionNode, doing: str
    ) -> tuple[Typed, ...]:
        """Return expressions that are converted to one type."""
        wanted = self._common_type(given, node, doing)
        self._check_digits(wanted.digits, node)
        found = tuple(filter(None, (converted(each, wanted) for each in given)))
        if len(found) < len(given):
            self._refuse_mix(given, node, doing)
        return found

    def _common_type(self, given: tuple[Typed, ...], node: ExpressionNode, doing: str) -> ValueType:
        """Return the type that holds the values of all expressions."""
        kinds = {each.type.kind for each in given} - {"null"}
        if not kinds:
            return _NULL
        if "decimal" in kinds:
            sizes = [_as_decimal(each) for each in given if each.type.kind != "null"]
            found = [size for size in sizes if size is not None]
            if len(found) < len(sizes):
                self._refuse_mix(given, node, doing)
            places = max(size.places for size in found)
            whole = max(size.digits - size.places for size in found)
            return ValueType("decimal", False, whole + places, places)
        if kinds == {"int", "float"}:
            return ValueType("float")
        if len(kinds) > 1:
            self._refuse_mix(given, node, doing)
        return ValueType(kinds.pop())

    def _refuse_mix(self, given: tuple[Typed, ...], node: ExpressionNode, doing: str) -> NoReturn:
        texts = ", ".join(dict.fromkeys(f"{each.node} is {each.type}" for each in given))
        self._refuse(node, f"{texts}, and these are not {doing} without a CAST")

    def _refuse(self, node: ExpressionNode, why: str) -> NoReturn:
        raise StateTypeError(f"{self._where}: in {node}: {why}")


def _as_decimal(typed: Typed) -> ValueType | None:
    """Return the decimal type for the values of a number; None for floats that are not constant."""
    if typed.type.kind in ("decimal", "null"):
        return ValueType("decimal", True, 1, 0) if typed.type.kind == "null" else typed.type
    if typed.type.kind not in ("int", "float"):
        return None
    if not typed.is_constant:
        return _INT_AS_DECIMAL if typed.type.kind == "int" else None
    if typed.value is None:  # CAST(NULL AS BIGINT)
        return ValueType("decimal", True, 1, 0)
    value = decimal.Decimal(repr(typed.value))
    return type_of_value(plain_decimal(value)) if value.is_finite() else None
