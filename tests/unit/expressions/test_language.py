"""The language of expressions: what it means, what it refuses, and how it is written."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from typing import Any, NamedTuple

import pytest
from sqlglot.tokens import Tokenizer

import statekit as sk
from statekit.codec.annotations import struct_fields
from statekit.expressions import value_types
from statekit.expressions.compiled import compiled
from statekit.expressions.sql_text import tree_of_text
from statekit.expressions.tree import BinaryNode, ColumnNode, LiteralNode
from tests.support.expression_trees import Inner, Row

NOON = dt.datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=dt.UTC)
NAN = float("nan")
ROW = Row(
    i=7,
    j=None,
    f=2.5,
    g=None,
    d=decimal.Decimal("12.50"),
    e=None,
    s="Straße 😀",
    t=None,
    b=True,
    c=None,
    day=dt.date(2026, 2, 28),
    since=NOON,
    until=NOON + dt.timedelta(hours=2),
    wait=dt.timedelta(hours=2),
    nest=Inner(1, None),
)

MEANINGS: list[tuple[str, Any]] = [
    # three truth values
    ("j > 1", None),
    ("j > 1 OR b", True),
    ("j > 1 AND NOT b", False),
    ("NOT (j = 1)", None),
    ("j IS NULL AND i IS NOT NULL", True),
    ("j IS DISTINCT FROM 1", True),
    ("j IS NOT DISTINCT FROM NULL", True),
    ("c IS TRUE", False),
    ("i IN (1, NULL)", None),
    ("i IN (7, NULL)", True),
    ("i NOT IN (1, NULL)", None),
    ("i BETWEEN 7 AND 8", True),
    # numbers
    ("i / 2", 3.5),
    ("-i % 4", -3),
    ("i + 1 = 8.0", True),
    ("d + 1", decimal.Decimal("13.50")),
    ("d * d", decimal.Decimal("156.2500")),
    ("d > 12.49", True),
    ("CAST(d AS DOUBLE) / 2", 6.25),
    ("CAST('nan' AS DOUBLE) = CAST('nan' AS DOUBLE)", True),
    ("f < CAST('nan' AS DOUBLE)", True),
    ("0.0 = -0.0", True),
    ("floor(-f)", -3.0),
    ("CAST(ceil(f) AS BIGINT)", 3),
    ("CAST(' 1' || '' AS VARCHAR)", " 1"),
    ("CAST('12' AS BIGINT) + CAST('1e2' AS DOUBLE)", 112.0),
    ("abs(-i)", 7),
    ("i / NULLIF(i - 7, 0)", None),
    ("CAST(NULL AS BIGINT) < d", None),
    # texts
    ("length(s)", 8),
    ("upper(s)", "STRAßE 😀"),
    ("s LIKE 'Stra_e%' AND s NOT LIKE 'str%'", True),
    ("s || '!'", "Straße 😀!"),
    ("s || t", None),
    ("'a' = 'a '", False),
    ("'\ue000' < '😀'", True),  # by code points, not by units of UTF-16
    # times
    ("until - since = wait", True),
    ("since + wait = until", True),
    ("date_trunc('hour', since)", NOON.replace(minute=0, second=0, microsecond=0)),
    ("extract(year FROM since) * 100 + extract(month FROM day)", 202_602),
    ("CAST(since AS DATE) > day", True),
    ("since < TIMESTAMP '2026-03-01 13:31:00+01:00'", True),
    ("INTERVAL '90' MINUTE < wait", True),
    # branches
    ("CASE WHEN j > 0 THEN 'many' WHEN b THEN 'some' END", "some"),
    ("CASE i WHEN 7 THEN 1.5 ELSE 0 END", 1.5),
    ("COALESCE(j, nest.n)", 1),
    ("nest.s IS NULL", True),
    ("b OR i / 0 > 1", True),
]


@pytest.mark.parametrize(("text", "value"), MEANINGS, ids=[text for text, _ in MEANINGS])
def test_an_expression_has_this_value(text: str, value: Any) -> None:
    found = compiled(text, Row).of_record(ROW)
    assert (type(found), found) == (type(value), value)


REFUSED = [
    ("cents > 1", "Row has no field 'cents' \\(it has i, j"),
    ("nest.x = 1", "nest has no field 'x' \\(it has n, s\\)"),
    ("i.x = 1", "i has no field 'x' \\(it is no record"),
    ("s > 1", "s is VARCHAR, 1 is BIGINT, and these are not compared without a CAST"),
    ("s + 1", "s is VARCHAR and no number"),
    ("d > f", "d is DECIMAL\\(9, 2\\), f is DOUBLE.* without a CAST"),
    ("d / 2", "decimals are not divided: use CAST"),
    ("CAST(d AS DECIMAL(3, 1))", "no CAST to DECIMAL\\(3, 1\\) that is exact"),
    ("d * d * d * d * d", "decimals of 39 digits, and they have at most 38: declare the fields"),
    ("f % 2", "% takes BIGINT, not DOUBLE"),
    ("b > TRUE", "BOOLEAN is not compared with >"),
    ("i AND b", "it is BIGINT where a condition is needed"),
    ("CAST(f AS VARCHAR)", "DOUBLE has no CAST to VARCHAR"),
    ("CAST(s AS TIMESTAMP)", "there is no CAST to TIMESTAMP: use BIGINT"),
    ("nest = nest", "is not compared with ="),
    ("date_trunc('month', since)", "DATE_TRUNC takes SECOND, MINUTE, HOUR, DAY, not MONTH"),
    ("extract(hour FROM day)", "day is DATE and no TIMESTAMP"),
    ("round(f)", "ROUND\\(f\\) is not in the language.* functions are ABS"),
    ("now() > since", "is not in the language"),
    ("d + CAST('inf' AS DOUBLE)", "inf.* is DOUBLE, and these are not computed without a CAST"),
    ("i IN (SELECT 1)", "is not in the language"),
    ("s LIKE t", "LIKE takes a pattern that is a constant text"),
    ("s LIKE 'a\\b'", "a backslash in a pattern stands before"),
    ("i >", "is not SQL"),
    ("select > 1", 'a field whose name is a word of SQL is written in double quotes: "release"'),
    ("i > 1; DROP TABLE x", "is not SQL|not in the language"),
    ("99999999999999999999 > i", "does not fit into 64 bits"),
    ("INTERVAL '1' MONTH < wait", "an interval is a whole number of"),
    (" + ".join(["i"] * 200), "nested more than"),
    ("(" * 90 + "i" + " + 1)" * 90 + " > 1", "its parentheses are nested too deep"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
def test_an_expression_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(sk.StateTypeError, match=why):
        compiled(text, Row)


FAILING = [
    ("i + 9223372036854775807", OverflowError, "is 9223372036854775814, which its type cannot"),
    ("-(-9223372036854775808)", OverflowError, "is 9223372036854775808, which its type cannot"),
    ("i / (i - 7)", ZeroDivisionError, "divides by zero: use NULLIF"),
    ("i % (i - 7)", ZeroDivisionError, "divides by zero"),
    ("CAST(f AS BIGINT)", ValueError, "cannot convert 2.5 exactly"),
    ("CAST(s AS BIGINT)", ValueError, "cannot convert 'Straße 😀' exactly"),
    ("since + INTERVAL '4000000' DAY", OverflowError, "outside of the years 1 to 9999"),
]


@pytest.mark.parametrize(("text", "error", "why"), FAILING, ids=[text for text, *_ in FAILING])
def test_a_value_that_cannot_be_is_an_error(text: str, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        compiled(text, Row).of_record(ROW)


def test_operators_of_python_build_what_sql_text_says() -> None:
    i, s, b = sk.col("i"), sk.col("s"), sk.col("b")
    pairs: list[tuple[sk.Expression, str]] = [
        (i + 1 > 2 * i - 3, "i + 1 > 2 * i - 3"),
        ((i == 1) | ~b & (i != 2), "i = 1 OR (NOT b AND i <> 2)"),
        (-i / 4 % 2, "-i / 4 % 2"),
        (1 - i <= 10 / i, "1 - i <= 10 / i"),
        (s.concat("!").like("a%") & s.is_in(["a", "b"]), "s || '!' LIKE 'a%' AND s IN ('a', 'b')"),
        (s.is_null() | s.is_not_null(), "s IS NULL OR s IS NOT NULL"),
        (sk.col("nest.n").is_distinct_from(None), "nest.n IS DISTINCT FROM NULL"),
        (i.between(1, 2), "i BETWEEN 1 AND 2"),
        (sk.col("j").coalesce(0).cast("double"), "CAST(COALESCE(j, 0) AS DOUBLE)"),
        (sk.col("since") < NOON, "since < TIMESTAMP '2026-03-01 12:30:15.250000+00:00'"),
        (sk.lit(dt.date(2026, 1, 1)) > sk.col("day"), "DATE '2026-01-01' > day"),
        (sk.col("wait") > dt.timedelta(hours=36), "wait > INTERVAL '36' HOUR"),
        (sk.col("d") == decimal.Decimal("1.50"), "d = CAST('1.50' AS DECIMAL(3, 2))"),
    ]
    for built, text in pairs:
        assert built.equals(sk.expr(text)), (str(built), text)
        assert built.equals(pickle.loads(pickle.dumps(built)))
    assert not (i > 1).equals(i > 1.0)


def test_an_expression_names_its_fields_and_has_no_truth_value() -> None:
    large = sk.expr("i > 1 AND nest.s LIKE 'a%' AND COALESCE(j, i) IN (1, 2)")
    assert large.fields() == {"i", "j", "nest.s"}
    with pytest.raises(sk.StateTypeError, match="combine conditions with &"):
        bool(large)


@pytest.mark.parametrize(
    "value", [object(), 2**63, decimal.Decimal("nan"), dt.datetime(2026, 1, 1), b"a", [1]]
)
def test_a_constant_without_a_type_is_refused(value: Any) -> None:
    with pytest.raises(sk.StateTypeError, match="is no constant of an expression"):
        sk.lit(value)


@pytest.mark.parametrize("joined", [" AND ", " OR "])
def test_many_conditions_are_not_nested(joined: str) -> None:
    texts = [f"j <> {number} OR i = {number}" for number in range(500)]
    found = compiled(f"NOT ({joined.join(f'({text})' for text in texts)})", Row)
    assert found.of_record(ROW) is (None if joined == " AND " else False)
    assert found.of_record(ROW._replace(j=-1)) is False


class Bill(NamedTuple):
    cents: int


def test_the_fields_of_a_class_are_read_once_for_all_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Any] = []

    def fields(cls: Any) -> Any:
        read.append(cls)
        return struct_fields(cls)

    monkeypatch.setattr(value_types, "struct_fields", fields)
    compiled(" OR ".join(f"cents = {cents}" for cents in range(300)), Bill, "here")
    assert read == [Bill]


def nested(levels: int) -> sk.Expression:
    deep = sk.col("c")
    for _ in range(levels // 2):
        deep = ~(deep | (sk.col("j") > 1))
    return deep


def test_deep_nesting_is_refused_when_it_is_declared() -> None:
    assert compiled(nested(58), Row).of_record(ROW) is None
    with pytest.raises(sk.StateTypeError, match="more than 60 levels deep: split it"):
        compiled(nested(60), Row)


def test_options_and_patterns_of_another_type_are_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="has no values: give a list"):
        sk.col("s").is_in("abc")
    with pytest.raises(sk.StateTypeError, match="give a text"):
        sk.col("s").like(5)  # type: ignore[arg-type]
    with pytest.raises(sk.StateTypeError, match="name one type"):
        sk.col("i").cast("BIGINT) + (1")


def test_names_that_sql_reads_as_words_are_quoted() -> None:
    names = {word.lower() for word in Tokenizer.KEYWORDS if word.isidentifier()}
    assert len(names) > 200
    for name in sorted(names):
        column = ColumnNode((name,))
        for tree in (column, ColumnNode((name, "a")), BinaryNode("=", LiteralNode(1), column)):
            assert tree_of_text(str(tree)) == tree, name
    odd = ColumnNode(('a "b".c', "d e"))
    assert tree_of_text(str(odd)) == odd


def test_a_compiled_expression_is_pickled_without_its_code() -> None:
    euros = compiled("i / 100", Row)
    assert euros.of_record(ROW) == 0.07
    again = pickle.loads(pickle.dumps(euros))
    assert again.of_record(ROW) == 0.07
    assert str(again) == "i / 100"
