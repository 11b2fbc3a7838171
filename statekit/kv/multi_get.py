"""`multi_get`: one request for several keys becomes one per key, and their answers one answer.

All requests of one record are answered in one epoch: at once, or when the watermark passes their
time, which is the same. So their answers are put together without any state.
"""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from statekit.codec.digest import digest
from statekit.errors import StateTypeError
from statekit.functions.process import process
from statekit.job.stream import Stream
from statekit.kv.annotations import iterator_of, list_of, named_class, optional
from statekit.kv.answers import AnswerClass

_EMPTY: dict[type, Any] = {
    bool: False,
    int: 0,
    str: "",
    bytes: b"",
    dt.date: dt.date(1970, 1, 1),
    dt.datetime: dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
}
"""Some key of each type, for a request without keys: it is sent there, and reads nothing."""


class Assembly:
    """Takes requests apart, and puts their answers together.

    Parameters:
        name: of the answers.
        stream: the records with lists of keys.
        key: the names and types of the parts of a key.
        value: the type of the values, with None.
        times: for the field with the time of a request, that of a record; empty without time.
    """

    def __init__(
        self, name: str, stream: Stream[Any], key: dict[str, Any], value: Any, times: dict[str, str]
    ) -> None:
        self._name = name
        self._stream = stream
        self._record: Any = stream.record_class
        self._key = key
        self._value = value
        self._times = times
        timed = dict.fromkeys(times, dt.datetime)
        own = {"request": bytes, "position": int, "record": optional(self._record)}
        self._request = named_class(f"{name}.requests", {**key, **own, **timed})
        self._fields = {"record": self._record, **timed, "values": list_of(value)}

    def requests(self, keys_of: Callable[[Any], Any]) -> Stream[Any]:
        """Return a request for each key.

        Each has a digest of its record, by which they are found again: it is the same in a replay.
        """
        make, record_class, is_single = self._request, self._record, len(self._key) == 1
        nowhere = tuple(_some_key(of) for of in self._key.values())
        times_of = [attrgetter(field) for field in self._times.values()]

        def one_by_one(record: Any) -> Iterator[Any]:
            found = digest(record, record_class)
            times = [time_of(record) for time_of in times_of]
            keys = [(key,) if is_single else key for key in keys_of(record)]
            for position, key in enumerate(keys):
                yield make(*key, found, position, record if position == 0 else None, *times)
            if not keys:
                yield make(*nowhere, found, -1, record, *times)

        name = f"{self._name}.requests"
        return self._stream.flat_map(one_by_one, into=self._request, name=name)

    @property
    def found(self) -> str:
        """The name of the answers about single keys."""
        return f"{self._name}.values"

    def records(self, requests: Stream[Any], name: str) -> Stream[Any]:
        """Return the records that some requests were made of, once each."""
        first = requests.filter(lambda request: request.record is not None, name=f"{name}.first")
        return first.map(lambda request: request.record, into=self._record, name=name)

    def answers(self, found: Stream[Any], into: Any) -> Stream[Any]:
        """Return an answer for each record, put together from those about single keys."""
        answer = AnswerClass.of(self._name, self._fields, into)
        make = answer.of_results(lambda record, results: results)
        timed = list(self._times)

        def assembled(parts: Iterator[Any]) -> Iterator[Any]:
            values: dict[int, Any] = {}
            records = []
            for part in parts:
                if part.record is not None:
                    records.append((part.record, *(getattr(part, time) for time in timed)))
                if part.position >= 0:
                    values[part.position] = part.value
            in_order = [values[position] for position in range(len(values))]
            for record in records:  # equal requests have equal answers
                yield make(record, (list(in_order),))

        assembled.__name__ = self._name
        assembled.__annotations__ = {
            "parts": iterator_of(found.record_class),
            "return": iterator_of(answer.cls),
        }
        return found.process(process(key="request")(assembled), name=self._name)


def _some_key(of: Any) -> Any:
    members = [member for member in (typing.get_args(of) or (of,)) if member in _EMPTY]
    if not members:
        raise StateTypeError(f"multi_get: {of} is no type of keys")
    return _EMPTY[members[0]]
