"""Schemas as DDL, such as "n int, s string", parsed with or without a JVM.

Spark's own parser runs in the JVM, and reads all schemas where there is a session. Without one,
as in tests, the parser of this file reads the same grammar: each text that it accepts has the
schema that Spark returns with its default settings. It refuses a few texts that Spark accepts, such
as those with types of geometry, or with the collation of a language.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as sql

from statekit.errors import StateTypeError


def parsed_schema(schema: object, where: str) -> sql.StructType:
    """Return a schema, parsed if it is DDL.

    Parameters:
        where: its description for errors.

    Raises:
        StateTypeError: it is neither a schema nor DDL; or only Spark can read it, and there is no
            session.
    """
    found = _parsed(schema, where) if isinstance(schema, str) else schema
    if not isinstance(found, sql.StructType):
        raise StateTypeError(f"{where}: give its schema as a StructType or a text like 'n int'")
    return found


def _parsed(text: str, where: str) -> sql.DataType:
    try:
        return sql.StructType.fromDDL(text)
    except PySparkRuntimeError as error:
        if error.getCondition() != _NO_SESSION:
            raise
    try:
        return parsed_ddl(text)
    except DdlError as error:
        raise StateTypeError(
            f"{where}: its schema {text!r:.200} cannot be read without Spark: {error}. Correct it, "
            "give it as a StructType, or create a SparkSession first, which reads all of Spark's "
            "types"
        ) from None


_NO_SESSION = "SESSION_OR_CONTEXT_NOT_EXISTS"


class DdlError(ValueError):
    """The text is not valid DDL, or only Spark can parse it."""


class _Token(NamedTuple):
    """A part of a text: its kind (a group of `_TOKENS`), the text, and its position."""

    kind: str
    text: str
    position: int


_SPACES = " \t\n\v\f\r\u00a0\u1680\u2000-\u200a\u2028\u202f\u205f\u3000"
_TOKENS = re.compile(
    rf"""
    (?P<space> [{_SPACES}]+ | --[^\r\n]* | /\*(?!\+)(?:(?!/\*|\*/).)*\*/ )
    | (?P<string> [rR](?:'[^']*'|"[^"]*") | '(?:\\.|''|[^'\\])*' | "(?:\\.|""|[^"\\])*" )
    | (?P<quoted> `(?:``|[^`])*` )
    | (?P<word> [A-Za-z0-9_]+ )
    | (?P<sign> [<>(),:] )
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"\d+(?:e\d+)?(?:l|s|y|f|d|bd)?", re.IGNORECASE | re.ASCII)
"""Words that Spark reads as numbers, and not as names."""

_END = "the end"


def parsed_ddl(text: str) -> sql.DataType:
    """Return the type of a text: a schema, or a single type.

    Raises:
        DdlError: it is not valid, or only Spark can read it.

    >>> parsed_ddl("n int not null, of array<string>").simpleString()
    'struct<n:int,of:array<string>>'
    >>> parsed_ddl("decimal(5, 2)")
    DecimalType(5,2)
    """
    tokens = _tokens(text)
    if len(tokens) == 1:
        return sql.StructType()
    try:
        return _Parser(tokens).single_type()
    except DdlError:
        return _Parser(tokens).schema(_END)


def _tokens(text: str) -> list[_Token]:
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKENS.match(text, position)
        if match is None:
            raise DdlError(f"{text[position]!r} at position {position} is not expected")
        kind = match.lastgroup or ""
        if kind == "word" and _NUMBER.fullmatch(match[0]):
            kind = "number"
        if kind != "space":
            tokens.append(_Token(kind, match[0], position))
        position = match.end()
    return [*tokens, _Token("end", _END, position)]


class _Parser:
    """Reads tokens one after another. Each method reads one part of the grammar.

    Parameters:
        tokens: of a text, with its end.
    """

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0

    def single_type(self) -> sql.DataType:
        """Read a type and the end of the text."""
        found = self._type()
        self._expect(_END)
        return found

    def schema(self, end: str) -> sql.StructType:
        """Read fields up to a closing sign, or to the end of the text."""
        fields = []
        if not self._has(end):
            fields.append(self._field())
            while self._has(","):
                fields.append(self._field())
            self._expect(end)
        return sql.StructType(fields)

    def _field(self) -> sql.StructField:
        name = self._name()
        self._has(":")
        of = self._type()
        nullable = not self._has("not")
        if not nullable:
            self._expect("null")
        metadata = {"comment": self._strings()} if self._has("comment") else None
        return sql.StructField(name, of, nullable, metadata)

    def _name(self) -> str:
        token = self._next()
        if token.kind == "quoted":
            return token.text[1:-1].replace("``", "`")
        if token.kind != "word":
            raise self._unexpected(token)
        return token.text

    def _strings(self) -> str:
        token = self._next()
        if token.kind != "string":
            raise self._unexpected(token)
        text = _unquoted(token.text)
        while self._tokens[self._place].kind == "string":
            text += _unquoted(self._next().text)
        return text

    # ------------------------------------------------------------------------------------- types

    def _type(self) -> sql.DataType:
        token = self._next()
        name = token.text.lower()
        if token.kind != "word":
            raise self._unexpected(token)
        if name in _NESTED:
            self._expect("<")
            return _NESTED[name](self)
        if name == "interval":
            return self._interval()
        if name == "string" and self._has("collate"):
            return self._collated()
        of_words = self._in_words(name)
        if of_words is not None:
            return of_words
        sizes = self._sizes()
        make = _SIMPLE.get((name, len(sizes)))
        if make is None:
            raise DdlError(f"{token.text!r} at position {token.position} is no type")
        return make(*sizes)

    def array(self) -> sql.ArrayType:
        """Read an array, after its `<`."""
        element = self._type()
        self._expect(">")
        return sql.ArrayType(element)

    def map(self) -> sql.MapType:
        """Read a map, after its `<`."""
        key = self._type()
        self._expect(",")
        value = self._type()
        self._expect(">")
        return sql.MapType(key, value)

    def struct(self) -> sql.StructType:
        """Read a struct, after its `<`."""
        return self.schema(">")

    def _interval(self) -> sql.DataType:
        for units, interval in _INTERVALS:
            first = next((unit for unit in units if self._has(unit)), None)
            if first is not None:
                start = end = units.index(first)
                if self._has("to"):
                    token = self._next()
                    later = units[start + 1 :]
                    if token.text.lower() not in later:
                        raise self._unexpected(token)
                    end = units.index(token.text.lower())
                return interval(start, end)
        return sql.CalendarIntervalType()

    def _collated(self) -> sql.StringType:
        name = self._name()
        if not _COLLATION.fullmatch(name):
            raise DdlError(f"collation {name!r} is not known")
        return sql.StringType(name.upper())

    def _in_words(self, name: str) -> sql.DataType | None:
        """Read a type whose name has several words; None if there is none."""
        for of, words, found in _IN_WORDS:
            if name == of and self._has(words[0]):
                for word in words[1:]:
                    self._expect(word)
                return found()
        return None

    def _sizes(self) -> list[int]:
        """Read numbers in parentheses; none if there are no parentheses."""
        sizes: list[int] = []
        while self._has("," if sizes else "("):
            token = self._next()
            if not token.text.isdigit():
                raise self._unexpected(token)
            sizes.append(int(token.text))
        if sizes:
            self._expect(")")
        return sizes

    # ------------------------------------------------------------------------------------ tokens

    def _next(self) -> _Token:
        token = self._tokens[self._place]
        if token.kind != "end":
            self._place += 1
        return token

    def _has(self, text: str) -> bool:
        """Read a word or a sign if it is next, and return whether it was read."""
        token = self._tokens[self._place]
        is_next = token.kind in ("word", "sign", "end") and token.text.lower() == text
        self._place += is_next and token.kind != "end"
        return is_next

    def _expect(self, text: str) -> None:
        if not self._has(text):
            raise self._unexpected(self._next())

    def _unexpected(self, token: _Token) -> DdlError:
        if token.kind == "end":
            return DdlError("it ends too early")
        return DdlError(f"{token.text!r} at position {token.position} is not expected")


def _decimal(precision: int = 10, scale: int = 0) -> sql.DecimalType:
    if not scale <= precision <= 38:
        raise DdlError(f"decimal({precision},{scale}) has a scale above its precision, or above 38")
    return sql.DecimalType(precision, scale)


_NESTED: dict[str, Callable[[_Parser], sql.DataType]] = {
    "array": _Parser.array,
    "map": _Parser.map,
    "struct": _Parser.struct,
}

_PLAIN: dict[Callable[[], sql.DataType], str] = {
    sql.BooleanType: "boolean",
    sql.ByteType: "tinyint byte",
    sql.ShortType: "smallint short",
    sql.IntegerType: "int integer",
    sql.LongType: "bigint long",
    sql.FloatType: "float real",
    sql.DoubleType: "double",
    sql.StringType: "string",
    sql.BinaryType: "binary",
    sql.DateType: "date",
    sql.TimestampType: "timestamp timestamp_ltz",
    sql.TimestampNTZType: "timestamp_ntz",
    sql.TimeType: "time",
    sql.NullType: "void",
    sql.VariantType: "variant",
}
_SIMPLE: dict[tuple[str, int], Callable[..., sql.DataType]] = {
    **{(name, 0): make for make, names in _PLAIN.items() for name in names.split()},
    **{(name, size): _decimal for name in ("decimal", "dec", "numeric") for size in range(3)},
    ("char", 1): sql.CharType,
    ("character", 1): sql.CharType,
    ("varchar", 1): sql.VarcharType,
    ("time", 1): sql.TimeType,
}
"""Types by their name in lower case, and the number of sizes in parentheses."""

_IN_WORDS: tuple[tuple[str, tuple[str, ...], Callable[[], sql.DataType]], ...] = (
    ("timestamp", ("without", "time", "zone"), sql.TimestampNTZType),
    ("timestamp", ("with", "local", "time", "zone"), sql.TimestampType),
    ("time", ("without", "time", "zone"), sql.TimeType),
)

_INTERVALS: tuple[tuple[tuple[str, ...], Callable[[int, int], sql.DataType]], ...] = (
    (("year", "month"), sql.YearMonthIntervalType),
    (("day", "hour", "minute", "second"), sql.DayTimeIntervalType),
)

_COLLATION = re.compile(r"(?:utf8_binary|utf8_lcase|unicode(?:_ci)?(?:_ai)?)(?:_rtrim)?", re.I)


# ------------------------------------------------------------------------------------ strings

_ESCAPE = re.compile(
    r"\\(?:u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<octal>[01][0-7]{2})|(?P<one>.))",
    re.DOTALL,
)
_ESCAPED = dict(zip("0bnrtZ", "\0\b\n\r\t\x1a", strict=True)) | {"%": "\\%", "_": "\\_"}


def _unquoted(token: str) -> str:
    """Return the text of a string token."""
    if token[0] in "rR":
        return token[2:-1]
    quote = token[0]
    return _ESCAPE.sub(_unescaped, token[1:-1].replace(quote * 2, quote))


def _unescaped(match: re.Match[str]) -> str:
    if match["one"] is not None:
        return _ESCAPED.get(match["one"], match["one"])
    if match["octal"] is not None:
        return chr(int(match["octal"], 8))
    code = int(match["short"] or match["long"], 16)
    if code > 0x10FFFF:
        raise DdlError(f"{match[0]} is no character")
    return chr(code)
