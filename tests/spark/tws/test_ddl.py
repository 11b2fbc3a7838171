"""DDL that is read without a JVM has the schema that Spark's own parser returns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import types as sql

from statekit.spark.tws.ddl import DdlError, parsed_ddl, parsed_schema

pytestmark = pytest.mark.usefixtures("spark")


def of_spark(text: str) -> sql.DataType | None:
    """What Spark's parser returns; None if it refuses a text."""
    try:
        return sql.DataType.fromDDL(text)
    except (PySparkException, Py4JJavaError):
        return None


def without_spark(text: str) -> sql.DataType | None:
    """What the parser without a JVM returns; None if it refuses a text."""
    try:
        return parsed_ddl(text)
    except DdlError:
        return None


VALID = [
    "",
    "n INT, s String",
    "n: int, s :string, b bigint",
    "int",
    "struct<n: int NOT NULL>",
    "array<map<string,struct<x:int,y:decimal(10,2)>>>",
    "x struct<>, y struct< >",
    "t tinyint, b byte, s smallint, h short, i integer, l long, f float, r real, d double",
    "d date, t timestamp, n timestamp_ntz, l timestamp_ltz, v void, b binary, o boolean, x variant",
    "n timestamp without time zone, l timestamp with local time zone, t time, u time(3)",
    "d decimal, e dec(5), n numeric(38,38), z decimal(0,0), p decimal(05, 02)",
    "c char(5), d character(3), v varchar(0)",
    "i interval, y interval year, m interval month, ym interval year to month",
    "d interval day, ds INTERVAL Day TO Second, hm interval hour to minute, s interval second",
    "interval interval, to interval day to hour",
    "n int not null comment 'x', m int comment \"y\"",
    "n int comment 'it''s' , m int comment 'it\\'s', o int comment \"say \"\"hi\"\"\"",
    "n int comment 'a\\nb\\t\\u0041\\065\\%\\_\\Z\\0\\b\\r\\\\\\8\\q\\400\\377\\u12\\U0001F600'",
    "n int comment r'a\\n', m int comment R\"\\t\", o int comment 'a' 'b', p int comment ''",
    "s string collate UTF8_BINARY, l string collate utf8_lcase, t string collate utf8_binary_rtrim",
    "u string collate UNICODE, c string collate `unicode_ci`, a string collate unicode_ci_ai_rtrim",
    "x array<string collate UTF8_LCASE>, collate string collate unicode not null comment 'c'",
    "`a b` int, `a``b` int, `a.b`: int, `` int, `n`int",
    "1a int, _a int, 1_a int, 1e5x int, 0x1 int",
    "select int, table int, int int, array int, map string, struct int, not int, null int",
    "comment string comment 'x', true int, join int, left int, end int, by int, string string",
    "n /* of */ int -- the number\n, s string",
    "n\tint\n,\u00a0s\u3000string",
    "n int, n int, N int",
]

INVALID = [
    *("n", "n int,", ",n int", "n int,,s int", "n int s string", "n int;", "(n int)", "n (int)"),
    *("x array", "x map", "x struct", "x array<>", "x array<int,int>", "x map<int>", "array"),
    *("x struct<a>", "x struct<a:int,>", "x array<int NOT NULL>", "n struct<a:int>>"),
    *(
        "n array<array<int>",
        "int NOT NULL",
        "x int not",
        "n int NULL",
        "n int comment 'x' not null",
    ),
    *("n int comment x", "n int comment 'x", "n int default 5", "n int collate unicode"),
    *("d decimal(39,0)", "d decimal(5,6)", "d decimal(5,-1)", "d decimal()", "d decimal(5,2,1)"),
    *("d decimal(5.0,2)", "d decimal(5L)", "d int(5)", "c char", "c varchar", "s string(5)"),
    *("s text", "b bool", "n null", "x object", "x double precision", "x int unsigned", "x int[]"),
    *("i interval month to year", "i interval day to day", "i interval week", "i interval(3)"),
    *("a-b int", "a.b int", "a$b int", "ä int", "1 int", "1L int", "1e5 int", "1.5 int", "`a int"),
    *("n :: int", ":n int", "n:int:string", "n `int`", "n 'int'", "?", "n /*+ hint */ int"),
    *("s string collate nonsense", "s string collate", "x binary collate UTF8_LCASE"),
    *("t timestamp(3)", "t timestamp with time zone", "t time(-1)", "n int comment"),
]

ONLY_SPARK = [
    "g geometry(4326)",
    "g geography(any)",
    "s string collate de_CI",
    "s string collate system.builtin.UTF8_LCASE",
    "c char(5) collate UTF8_LCASE",
    "t timestamp(6)",
    "n int comment '\\U00110000'",
    "n /* a /* b */ c */ int",
]


@pytest.mark.parametrize("text", VALID)
def test_a_schema_is_read_as_spark_reads_it(text: str) -> None:
    expected = of_spark(text)
    assert expected is not None
    assert parsed_ddl(text) == expected


@pytest.mark.parametrize("text", INVALID)
def test_a_text_that_spark_refuses_is_refused(text: str) -> None:
    assert of_spark(text) is None
    assert without_spark(text) is None


@pytest.mark.parametrize("text", ONLY_SPARK)
def test_a_few_texts_can_be_read_by_spark_only(text: str) -> None:
    assert of_spark(text) is not None
    assert without_spark(text) is None


# ------------------------------------------------------------------------------------ generated

NAMES = st.sampled_from(
    ["n", "a1", "Select", "int", "`a b`", "`a``b`", "comment", "not", "interval"]
)
ENDS = {"year": ["month"], "day": ["hour", "second"], "hour": ["minute"], "second": []}
SPACES = st.sampled_from([" ", "  ", "\n", "\t", " /* c */ ", " -- c\n"])


def words(*texts: str) -> st.SearchStrategy[list[str]]:
    """The words of one of these texts, in any case."""
    changed = st.sampled_from([str.lower, str.upper, str.title])
    return st.builds(lambda text, change: change(text).split(), st.sampled_from(texts), changed)


PLAIN = "boolean tinyint byte smallint short int integer bigint long float real double string"
SCALARS = (
    words(*PLAIN.split(), "binary")
    | words("date", "timestamp", "timestamp_ltz", "timestamp_ntz", "time", "void", "variant")
    | words("timestamp without time zone", "timestamp with local time zone", "interval")
    | words(
        *(f"interval {start} to {end}" for start, ends in ENDS.items() for end in ends),
        *[f"interval {start}" for start in ENDS],
    )
    | words("decimal", "dec ( 5 )", "numeric ( 20 , 3 )", "decimal ( 38 , 38 )", "char ( 3 )")
    | words("varchar ( 9 )", "time ( 3 )", "string collate utf8_lcase", "string collate unicode_ci")
)
COMMENTS = st.sampled_from(["'x'", '"y"', "'it''s'", "r'\\n'", "'a\\tb\\u00e4'"])


def fields(types: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    field = st.builds(
        lambda name, colon, of, null, comment: [name, *colon, *of, *null, *comment],
        NAMES,
        st.sampled_from([[], [":"]]),
        types,
        st.just([]) | words("not null"),
        st.just([]) | st.builds(lambda word, text: [*word, text], words("comment"), COMMENTS),
    )
    return st.lists(field, max_size=4).map(lambda some: _joined(some))


def _joined(parts: list[list[str]]) -> list[str]:
    """The words of some parts, with a comma between them."""
    return [word for part in parts for word in [",", *part]][1:]


def nested(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    return (
        st.builds(lambda name, of: [*name, "<", *of, ">"], words("array"), inner)
        | st.builds(lambda k, v: ["map", "<", *k, ",", *v, ">"], inner, inner)
        | st.builds(lambda name, of: [*name, "<", *of, ">"], words("struct"), fields(inner))
    )


TYPES = st.recursive(SCALARS, nested, max_leaves=5)
SCHEMAS = fields(TYPES)


@settings(max_examples=300, deadline=None)
@given(st.data(), SCHEMAS | TYPES)
def test_generated_schemas_are_read_as_spark_reads_them(data: Any, parts: list[str]) -> None:
    has_colon = ":" in parts  # Spark reads such a text a second time, with a bracket behind it
    spaces = st.just(" ") if has_colon else SPACES
    text = "".join(part + data.draw(spaces) for part in parts)
    expected = of_spark(text)
    assert expected is not None
    assert parsed_ddl(text) == expected


@settings(max_examples=500, deadline=None)
@given(SCHEMAS, st.integers(0, 40), st.sampled_from([*"<>(),:", "int", "not", "5", "'x'", ""]))
def test_schemas_with_another_word_are_read_or_refused_as_in_spark(
    parts: list[str], place: int, word: str
) -> None:
    text = " ".join([*parts[:place], word, *parts[place + 1 :]])
    assert without_spark(text) == of_spark(text)


@pytest.mark.parametrize("text", ["g geometry(4326)", "s string collate de_CI"])
def test_a_session_reads_the_schemas_that_only_spark_can_read(text: str) -> None:
    assert parsed_schema(text, "state 'places'") == of_spark(text)
