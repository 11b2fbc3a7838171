"""Values of arguments in documents: JSON, with a form that begins with "$" for all else."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import PurePath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from statekit.codec.json_form import json_form
from statekit.connectors.secret_text import SecretText, secret
from statekit.declared_call import DECLARABLE, DeclaredCall, declared_call_of, given_fields
from statekit.documents.imports import import_by_path, import_path
from statekit.documents.signatures import called
from statekit.documents.types import is_type, type_from_json, type_to_json
from statekit.documents.used_functions import source_digest, used_digests
from statekit.errors import StateTypeError
from statekit.expressions.expression import Expression, expr
from statekit.functions.process import Process
from statekit.job.stream import Stream
from statekit.secret_options import is_secret
from statekit.shown import shown, type_name

_PASSWORD = re.compile(r"\bpassword\s*=|://[^/@\s:]*:[^/@\s]+@", re.IGNORECASE)
"""A password in the connection string of libpq, or in a URL."""

_OF_FIELDS = ("fields", "schema")
"""Arguments of sources and sinks whose names are those of fields, and not of options."""

_TIMEDELTA = TypeAdapter(dt.timedelta)


def value_to_json(value: Any, at: str) -> Any:
    """Return the form of a value in a document.

    Parameters:
        at: its place in the document, for messages.

    Raises:
        StateTypeError: it has no form; a function or class cannot be imported; or it is a secret
            itself, instead of a reference to one.

    >>> value_to_json({"within": (dt.timedelta(hours=1), "2 hours")}, "job")
    {'within': {'$tuple': [{'$duration': 'PT1H'}, '2 hours']}}
    """
    try:
        return _form(value, at)
    except StateTypeError as error:
        if str(error).startswith(at):
            raise
        raise StateTypeError(f"{at}: {error}") from error


def _form(value: Any, at: str) -> Any:
    if isinstance(value, SecretText):
        return {"$secret": dict(value.place)}
    if isinstance(value, str):
        _check_holds_no_password(value)
        return str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": json_form(value)}
    for kind, name in _SCALARS.items():
        if isinstance(value, kind):
            return {f"${name}": json_form(value)}
    if isinstance(value, re.Pattern):
        return {"$pattern": _pattern_form(value)}
    if isinstance(value, PurePath):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return _mapping_form(value, at)
    if isinstance(value, tuple):
        return {"$tuple": _list_form(value, at)}
    if isinstance(value, list):
        return _list_form(value, at)
    return _object_form(value, at)


def _object_form(value: Any, at: str) -> Any:
    if isinstance(value, Expression):
        return {"$sql": str(value)}
    if isinstance(value, Stream):
        return {"$stream": list(value.names)}
    if (call := declared_call_of(value)) is not None:
        _check_options(call, at)
        return _call_form("$call", call.name, call.arguments, at)
    if is_type(value):
        return {"$type": type_to_json(value, lambda part: value_to_json(part, at))}
    if isinstance(value, Process) or callable(value):
        kind = "process" if isinstance(value, Process) else "function"
        form = {f"${kind}": import_path(value), "digest": source_digest(value)}
        return {**form, "uses": used} if (used := used_digests(value)) else form
    if is_dataclass(value):
        return _call_form("$object", import_path(type(value)), given_fields(value), at)
    raise StateTypeError(
        f"{shown(value, 100)} is of type {type_name(value)}, which has no form in a document: give "
        "a value of JSON, an instant, a duration, a function or class of a module, or an object of "
        "a dataclass"
    )


def _call_form(tag: str, name: str, arguments: Mapping[str, Any], at: str) -> dict[str, Any]:
    form = {"with": _arguments_form(arguments, at)} if arguments else {}
    return {tag: name, **form}


def _arguments_form(arguments: Mapping[str, Any], at: str) -> dict[str, Any]:
    return {name: value_to_json(value, f"{at}.{name}") for name, value in arguments.items()}


def _check_options(call: DeclaredCall, at: str) -> None:
    """Check that no option of a source or sink is a secret itself, or has options of its own, which
    no list of options has.
    """
    if not call.name.startswith(("sources.", "sinks.")):
        return
    for parameter, options in call.arguments.items():
        if not isinstance(options, Mapping) or parameter in _OF_FIELDS:
            continue
        for name, value in options.items():
            if isinstance(value, Mapping | list | tuple):
                raise StateTypeError(
                    f"{at}.{parameter}.{name} is {shown(value, 100)}, and options in a document "
                    "are single values: give a text, a number or a secret"
                )
            if type(value) is str and value and is_secret(str(name)):
                raise StateTypeError(
                    f"{at}.{parameter}.{name} is a secret, and a document has references to "
                    "secrets alone: give sk.secret(env=…) or sk.secret(file=…)"
                )


def _mapping_form(value: Mapping[Any, Any], at: str) -> Any:
    if other := [key for key in value if type(key) is not str]:
        raise StateTypeError(f"the key {shown(other[0], 100)} is no text: give texts as keys")
    form = _arguments_form(value, at)
    return {"$mapping": form} if any(key.startswith("$") for key in form) else form


def _list_form(value: Sequence[Any], at: str) -> list[Any]:
    return [value_to_json(each, f"{at}.{number}") for number, each in enumerate(value)]


def _check_holds_no_password(text: str) -> None:
    if _PASSWORD.search(text):
        raise StateTypeError(
            "the text contains a password, and a document has references to secrets alone: give "
            "the whole text as sk.secret(env=…) or sk.secret(file=…), or leave the password to the "
            "environment"
        )


def _pattern_form(value: re.Pattern[Any]) -> str:
    if not isinstance(value.pattern, str) or value.flags != re.compile(value.pattern).flags:
        raise StateTypeError(
            f"{shown(value, 100)} is of bytes or has flags: give a pattern of text, with its flags "
            "in it, as in '(?i)orders'"
        )
    return value.pattern


_SCALARS: dict[type, str] = {
    dt.datetime: "datetime",  # before the class that it is a subclass of
    dt.date: "date",
    dt.time: "time",
    dt.timedelta: "duration",
    decimal.Decimal: "decimal",
    bytes: "bytes",
}
"""Scalars that JSON does not have, with the name of their form."""


# ------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class Reading:
    """How values of a document are read.

    Parameters:
        modules: the packages and modules that may be imported; None for any.
        stream: returns the stream of some names.
        changed: whether functions may differ from those that the document was written with.
        digests: whether each function has to have its digests.
    """

    modules: Sequence[str] | None
    stream: Callable[[Any], Any]
    changed: bool = False
    digests: bool = False

    def value(self, form: Any, at: str) -> Any:
        """Return the value of a form.

        Parameters:
            at: its place in the document, for messages.

        Raises:
            StateTypeError: it is no form of a value, an import fails or is not allowed, a
                function has changed, or a text has a password. The message begins with the place.
        """
        if isinstance(form, list):
            return [self.value(each, f"{at}.{number}") for number, each in enumerate(form)]
        if not isinstance(form, dict | str):
            return form
        try:
            if isinstance(form, str):
                _check_holds_no_password(form)
                return form
            tag = next((key for key in form if key.startswith("$")), None)
            return self.arguments(form, at) if tag is None else self._tagged(tag, dict(form), at)
        except StateTypeError as error:
            if str(error).startswith(at):
                raise
            raise StateTypeError(f"{at}: {error}") from error

    def arguments(self, forms: Mapping[str, Any], at: str) -> dict[str, Any]:
        """Return the values of arguments."""
        return {name: self.value(form, f"{at}.{name}") for name, form in forms.items()}

    def _tagged(self, tag: str, form: dict[str, Any], at: str) -> Any:
        content = form.pop(tag)
        if tag not in _TAGS:
            names = ", ".join(sorted(_TAGS))
            raise StateTypeError(f"{at}: {tag} is no form of a value: forms are {names}")
        if unknown := form.keys() - _BESIDE.get(tag, set()):
            raise StateTypeError(f"{at}: {min(unknown)!r} is unknown beside {tag}: leave it out")
        return _TAGS[tag](self, content, form, at)

    def _scalar(self, read: Callable[[Any], Any], content: Any, at: str) -> Any:
        try:
            return read(content)
        except RecursionError:
            raise StateTypeError(f"{at}: {shown(content, 100)} is nested too deeply") from None
        except (ValueError, TypeError, ArithmeticError, ValidationError, re.error) as error:
            raise StateTypeError(f"{at}: {shown(content, 100)} cannot be read: {error}") from error

    def _tuple(self, content: Any, _: Any, at: str) -> Any:
        if not isinstance(content, list):
            raise StateTypeError(f"{at}: $tuple has a list")
        return tuple(self.value(content, at))

    def _mapping(self, content: Any, _: Any, at: str) -> Any:
        return self.arguments(_object(content, at), at)

    def _call(self, name: Any, form: dict[str, Any], at: str) -> Any:
        made = DECLARABLE.get(name) if isinstance(name, str) else None
        if made is None:
            raise StateTypeError(
                f"{at}: {shown(name, 100)} is none of {', '.join(sorted(DECLARABLE))}"
            )
        arguments = self.arguments(_object(form.get("with", {}), at), at)
        _check_options(DeclaredCall(name, arguments), at)
        return called(made, arguments, f"{at}: {name}")

    def _instance(self, path: Any, form: dict[str, Any], at: str) -> Any:
        cls = import_by_path(_text(path, at), self.modules)
        if not (isinstance(cls, type) and is_dataclass(cls)):
            raise StateTypeError(f"{at}: {path} is {shown(cls, 100)}, and no dataclass")
        arguments = self.arguments(_object(form.get("with", {}), at), at)
        return called(cls, arguments, f"{at}: {path}")

    def _type(self, form: Any, _: Any, at: str) -> Any:
        of_module = self._imported
        return type_from_json(form, of_module, lambda part: self.value(part, at))

    def _function(self, path: Any, form: dict[str, Any], at: str) -> Any:
        found = self._imported(_text(path, at))
        if isinstance(found, Process) or not callable(found):
            raise StateTypeError(f"{at}: {path} is {shown(found, 100)}, and no function")
        return self._unchanged(found, path, form, at)

    def _process(self, path: Any, form: dict[str, Any], at: str) -> Any:
        found = self._imported(_text(path, at))
        if not isinstance(found, Process):
            raise StateTypeError(
                f"{at}: {path} is {shown(found, 100)}, and no function decorated with @process"
            )
        return self._unchanged(found, path, form, at)

    def _unchanged(self, found: Any, path: str, form: dict[str, Any], at: str) -> Any:
        if self.changed:
            return found
        kept = form.get("digest")
        uses = _object(form.get("uses", {}), f"{at}.uses")
        advice = (
            "has changed since the document was written: write the document again, or pass "
            "changed=True to take functions as they are"
        )
        if kept is not None and kept != source_digest(found):
            raise StateTypeError(f"{at}: the source of {path} {advice}")
        now = used_digests(found) if uses or self.digests else {}
        if self.digests and (without := self._without_digest(found, path, kept, now, uses)):
            raise StateTypeError(
                f"{at}: {without} has no digest, so that a change of its source would not be seen: "
                "write the document with to_json()"
            )
        if changed := [name for name, digest in uses.items() if now.get(name) != digest]:
            raise StateTypeError(
                f"{at}: the source of {shown(changed[0])}, which {path} uses, {advice}"
            )
        return found

    @staticmethod
    def _without_digest(
        found: Any, path: str, kept: Any, now: Mapping[str, str], uses: Mapping[str, Any]
    ) -> str | None:
        """Return the first function whose digest a document does not have."""
        if kept is None and source_digest(found) is not None:
            return path
        return next((name for name in now if name not in uses), None)

    def _imported(self, path: str) -> Any:
        return import_by_path(path, self.modules)

    def _secret(self, place: Any, _: Any, at: str) -> Any:
        return called(secret, _object(place, at), at)

    def _stream(self, names: Any, _: Any, at: str) -> Any:
        return self.stream(names)


def _object(form: Any, at: str) -> dict[str, Any]:
    if not isinstance(form, dict):
        raise StateTypeError(f"{at}: {shown(form, 100)} is no object of JSON")
    return form


def _text(form: Any, at: str) -> str:
    if not isinstance(form, str):
        raise StateTypeError(f"{at}: {shown(form, 100)} is no text")
    return form


def _of_scalar(read: Callable[[Any], Any]) -> Any:
    return lambda reading, content, _, at: reading._scalar(read, content, at)


_TAGS: dict[str, Callable[[Reading, Any, dict[str, Any], str], Any]] = {
    "$datetime": _of_scalar(dt.datetime.fromisoformat),
    "$date": _of_scalar(dt.date.fromisoformat),
    "$time": _of_scalar(dt.time.fromisoformat),
    "$duration": _of_scalar(lambda content: _TIMEDELTA.validate_json(f'"{content}"')),
    "$decimal": _of_scalar(decimal.Decimal),
    "$bytes": _of_scalar(bytes.fromhex),
    "$pattern": _of_scalar(re.compile),
    "$float": _of_scalar(float),
    "$sql": _of_scalar(expr),
    "$tuple": Reading._tuple,
    "$mapping": Reading._mapping,
    "$call": Reading._call,
    "$object": Reading._instance,
    "$type": Reading._type,
    "$function": Reading._function,
    "$process": Reading._process,
    "$secret": Reading._secret,
    "$stream": Reading._stream,
}
"""What reads each form."""

_BESIDE: dict[str, set[str]] = {
    "$call": {"with"},
    "$object": {"with"},
    "$function": {"digest", "uses"},
    "$process": {"digest", "uses"},
}
"""What may be beside the tag of a form."""
