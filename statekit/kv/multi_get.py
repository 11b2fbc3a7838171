"""`multi_get`: splits a request for several keys into one per key, and joins their answers.

All requests of one record are answered in the same epoch: at once, or when the watermark passes
their common time. So their answers are joined without any state.
"""

from __future__ import annotations

import datetime as dt
import enum
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from statekit.codec.annotations import show
from statekit.codec.digest import digest
from statekit.errors import StateTypeError
from statekit.functions.process import process
from statekit.job.stream import Stream
from statekit.kv.annotations import iterator_of, list_of, named_class, optional
from statekit.kv.answers import AnswerClass
from statekit.kv.requests import (
    ArgumentCheck,
    Given,
    RequestPart,
    check_request_parts,
    checked_getter,
    key_of_parts,
)
from statekit.shown import shown

_EMPTY: dict[type, Any] = {
    bool: False,
    int: 0,
    str: "",
    bytes: b"",
    dt.date: dt.date(1970, 1, 1),
    dt.datetime: dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    dt.timedelta: dt.timedelta(0),
    uuid.UUID: uuid.UUID(int=0),
}
"""A key of each type, as the target of a request without keys, which reads nothing."""


class MultiGet:
    """Splits requests into one per key, and joins their answers.

    Parameters:
        name: of the answers.
        stream: the records with lists of keys.
        key: the names and types of the parts of a key.
        value: the type of the values, with None.
        times: the time field of a record, by the time field of a request; empty without time. With
            `as_of`, answers also have the status of each value.
    """

    def __init__(
        self,
        name: str,
        stream: Stream[Any],
        key: dict[str, Any],
        value: Any,
        times: dict[str, Given],
    ) -> None:
        self._name = name
        self._stream = stream
        self._record: Any = stream.record_class
        self._key = key
        self._value = value
        timed = dict.fromkeys(times, dt.datetime)
        self._timed = [RequestPart(field, dt.datetime, of) for field, of in times.items()]
        check_request_parts(stream, name, self._timed)
        own = {"request": bytes, "position": int, "record": optional(self._record)}
        self._request = named_class(f"{name}.requests", {**key, **own, **timed})
        self._late: Stream[Any] | None = None
        self._fields = {"record": self._record, **timed, "values": list_of(value)}
        self._has_statuses = "as_of" in times
        if self._has_statuses:
            self._fields["statuses"] = list_of(str)

    def requests(self, keys_of: Callable[[Any], Any]) -> Stream[Any]:
        """Return the stream with a request for each key.

        Each request has a digest of its record, by which the answers are joined: it is the same in
        a replay.
        """
        make, record_class, parts = self._request, self._record, len(self._key)
        where = self._name
        nowhere = tuple(_some_key(of) for of in self._key.values())
        checks = [ArgumentCheck(where, "keys=", of) for of in self._key.values()]
        times_of = [checked_getter(self._stream, where, part) for part in self._timed]

        def one_by_one(record: Any) -> Iterator[Any]:
            found = digest(record, record_class)
            times = [time_of(record) for time_of in times_of]
            given = keys_of(record)
            if not isinstance(given, list | tuple):
                raise StateTypeError(
                    f"{where}: {shown(given, 100)} is no list of keys: keys= must give a list or a "
                    "tuple, whose order the values have"
                )
            keys = [(key,) if parts == 1 else key_of_parts(key, parts, where) for key in given]
            for position, key in enumerate(keys):
                for check, part in zip(checks, key, strict=True):
                    check(part, record)
                yield make(*key, found, position, record if position == 0 else None, *times)
            if not keys:
                yield make(*nowhere, found, -1, record, *times)

        one_by_one.__name__ = where
        name = f"{self._name}.requests"
        return self._stream.flat_map(one_by_one, into=self._request, name=name)

    @property
    def found(self) -> str:
        """Name of the stream of answers for single keys."""
        return f"{self._name}.values"

    def late(self, requests: Stream[Any]) -> Stream[Any]:
        """Return the records of late requests, once each."""
        if self._late is None:
            name = f"{self._name}.requests.late"  # the operator has a late stream of its own
            first = requests.filter(lambda late: late.record is not None, name=f"{name}.first")
            self._late = first.map(lambda late: late.record, into=self._record, name=name)
        return self._late

    def answers(self, found: Stream[Any], into: Any) -> Stream[Any]:
        """Return the stream with an answer for each record, joined from those for single keys."""
        answer = AnswerClass.of(self._name, self._fields, into)
        make = answer.of_results(lambda record, lists: tuple(lists))
        timed = [part.name for part in self._timed]
        results = ("value", "status") if self._has_statuses else ("value",)
        places = range(len(results))

        def assembled(parts: Iterator[Any]) -> Iterator[Any]:
            found_at: dict[int, tuple[Any, ...]] = {}
            records = []
            for part in parts:
                if part.record is not None:
                    records.append((part.record, *(getattr(part, time) for time in timed)))
                if part.position >= 0:
                    found_at[part.position] = tuple(getattr(part, result) for result in results)
            in_order = [found_at[position] for position in range(len(found_at))]
            for record in records:  # equal requests have equal answers
                yield make(record, [[own[place] for own in in_order] for place in places])

        assembled.__name__ = self._name
        assembled.__annotations__ = {
            "parts": iterator_of(found.record_class),
            "return": iterator_of(answer.cls),
        }
        return found.process(process(key="request")(assembled), name=self._name)


def _some_key(of: Any) -> Any:
    if isinstance(of, type) and issubclass(of, enum.Enum):
        return next(iter(of))
    members = [member for member in (typing.get_args(of) or (of,)) if member in _EMPTY]
    if not members:
        raise StateTypeError(
            f"multi_get: keys of type {show(of)} are not supported: use several gets"
        )
    return _EMPTY[members[0]]
