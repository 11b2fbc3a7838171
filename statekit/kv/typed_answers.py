"""Static types of answers without a class of the user.

The classes of such answers are created when an operation is declared. These protocols declare
their fields for type checkers. With `into=`, answers have the class of the user instead.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


class KeyAnswer(Protocol[K_co]):
    """The answer to a request for a key."""

    @property
    def key(self) -> K_co:
        """The key of the request; a tuple if keys have several parts."""

    @property
    def at(self) -> dt.datetime:
        """The time of the request, in a store with `event_time`."""


class PutAnswer(KeyAnswer[K_co], Protocol[K_co, V_co]):
    """The answer of `put`."""

    @property
    def value(self) -> V_co:
        """The value that was set."""


class ValueAnswer(KeyAnswer[K_co], Protocol[K_co, V_co]):
    """The answer of `get` and `remove`."""

    @property
    def value(self) -> V_co | None:
        """The value; None if it is absent."""


class AsOfAnswer(ValueAnswer[K_co, V_co], Protocol[K_co, V_co]):
    """The answer of `get` with `as_of=`."""

    @property
    def as_of(self) -> dt.datetime:
        """The time of the value."""

    @property
    def status(self) -> str:
        """ "found", "absent", "too old" or "not yet"."""


class RecordAnswer(ValueAnswer[K_co, V_co], Protocol[K_co, V_co, T_co]):
    """The answer of `get_with`."""

    @property
    def record(self) -> T_co:
        """The record of the request."""


class RecordAsOfAnswer(
    RecordAnswer[K_co, V_co, T_co], AsOfAnswer[K_co, V_co], Protocol[K_co, V_co, T_co]
):
    """The answer of `get_with` with `as_of=`."""


class UpdateAnswer(RecordAnswer[K_co, V_co, T_co], Protocol[K_co, V_co, T_co]):
    """The answer of `update`."""

    @property
    def before(self) -> V_co | None:
        """The value before; None if it was absent."""


class AttemptAnswer(RecordAnswer[K_co, V_co, T_co], Protocol[K_co, V_co, T_co]):
    """The answer of `put_if_absent` and `compare_and_set`."""

    @property
    def won(self) -> bool:
        """True if the value was set."""


class ValuesAnswer(Protocol[V_co, T_co]):
    """The answer of `multi_get`."""

    @property
    def record(self) -> T_co:
        """The record of the request."""

    @property
    def values(self) -> Sequence[V_co | None]:
        """The values in the order of the keys; None for absent ones."""

    @property
    def at(self) -> dt.datetime:
        """The time of the request, in a store with `event_time`."""


class ScanEntry(Protocol[V_co]):
    """An entry of a scan."""

    @property
    def sort(self) -> Any:
        """The ordered part of its key."""

    @property
    def value(self) -> V_co:
        """Its value."""


class ScanAnswer(KeyAnswer[K_co], Protocol[K_co, V_co]):
    """The answer of `scan`. It also has the bounds of the request, as `start` and `end`."""

    @property
    def entries(self) -> Sequence[ScanEntry[V_co]]:
        """The entries in the order of the scan."""

    @property
    def next(self) -> Any:
        """With `after=`: the `after` of the next request; None at the end."""


class ScansAnswer(KeyAnswer[K_co], Protocol[K_co, V_co]):
    """The answer of `multi_scan`. It also has the `ranges` of the request."""

    @property
    def entries(self) -> Sequence[Sequence[ScanEntry[V_co]]]:
        """The entries of each range in the order of the scan."""


class EntryAnswer(ValueAnswer[K_co, V_co], Protocol[K_co, V_co]):
    """The answer of `first` and `last`. It also has the bounds of the request."""

    @property
    def sort(self) -> Any:
        """The ordered part of the key of the entry; None if there is none."""


class ExistsAnswer(KeyAnswer[K_co], Protocol[K_co]):
    """The answer of `exists`."""

    @property
    def exists(self) -> bool:
        """True if there is a value."""


class CountAnswer(KeyAnswer[K_co], Protocol[K_co]):
    """The answer of `count`. It also has the bounds of the request."""

    @property
    def count(self) -> int:
        """The number of entries."""


class RemovedAnswer(KeyAnswer[K_co], Protocol[K_co]):
    """The answer of `remove_range` and `trim`. It also has the parts of the request."""

    @property
    def removed(self) -> int:
        """The number of removed entries."""


class ValuesAsOfAnswer(ValuesAnswer[V_co, T_co], Protocol[V_co, T_co]):
    """The answer of `multi_get` with `as_of=`."""

    @property
    def as_of(self) -> dt.datetime:
        """The time of the values."""

    @property
    def statuses(self) -> Sequence[str]:
        """The status of each value, as for `get`."""


class ValueVersion(Protocol[V_co]):
    """A value with the interval in which it was there."""

    @property
    def value(self) -> V_co:
        """The value."""

    @property
    def valid_from(self) -> dt.datetime | None:
        """None if it was there before the store had a history."""

    @property
    def valid_until(self) -> dt.datetime | None:
        """None for the present value."""


class VersionsAnswer(KeyAnswer[K_co], Protocol[K_co, V_co]):
    """The answer of `versions`. It also has the bounds of the request, as `start` and `end`."""

    @property
    def versions(self) -> Sequence[ValueVersion[V_co]]:
        """The values in order of time."""

    @property
    def status(self) -> str:
        """ "complete" or "too old"."""


class StoreChange(ValueAnswer[K_co, V_co], Protocol[K_co, V_co]):
    """A change of a value. In a sorted store it also has `sort`."""

    @property
    def before(self) -> V_co | None:
        """The value before; None if it was absent."""
