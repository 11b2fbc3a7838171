"""Hypothesis strategies of histories: the records of some epochs, as streams have them.

A few keys are frequent and many are rare. Records have the same instant, are out of order, or
arrive too late.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st

from statekit.errors import StateTypeError
from statekit.number_faults import int_fault
from statekit.shown import shown
from statekit.testing.strategies import (
    CLOCK_CHANGES,
    fields_of,
    instance,
    is_made,
    record_type_with,
    values,
)
from statekit.timestamp import lateness_to_micros, micros_to_datetime

__all__ = [
    "NOON",
    "Edges",
    "Epochs",
    "Generated",
    "Given",
    "Reached",
    "Scene",
    "histories",
    "histories_of",
]

T = TypeVar("T")
Key = tuple[Any, ...]

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
"""Event time at which most histories begin."""

_EPOCH = micros_to_datetime(0)

_SECOND = dt.timedelta(seconds=1)


class Edges(NamedTuple):
    """Begins or ends of windows, at equal distances.

    Parameters:
        every: the time from one edge to the next.
        offset: the offset of the edges from 1970-01-01 00:00 UTC.

    >>> Edges(dt.timedelta(hours=1), dt.timedelta(minutes=5)).last_before(NOON).hour
    11
    """

    every: dt.timedelta
    offset: dt.timedelta

    def last_before(self, at: dt.datetime) -> dt.datetime:
        """Return the last edge that is not later than an instant."""
        return at - (at - _EPOCH - self.offset) % self.every


@dataclass(frozen=True)
class Generated:
    """Records of a class, generated from its types.

    Parameters:
        cls: the class.
        key: the fields of the key.
        event_time: the field with the event time; None if there is none.
        lateness: as for `@process`.
        fields: strategies of other fields, instead of those of their types.
        distances: some records are exactly so long after the one before, or an instant more or
            less.
        edges: the begins and ends of windows: some records are exactly there, or an instant before
            or after.
        constants: numbers and texts that occur in fields, as for `values`.

    Raises:
        StateTypeError: the class has no such field.
    """

    cls: Any
    key: tuple[str, ...] = ()
    event_time: str | None = None
    lateness: dt.timedelta = dt.timedelta(0)
    fields: Mapping[str, st.SearchStrategy[Any]] = field(default_factory=dict)
    distances: Sequence[dt.timedelta] = ()
    edges: Sequence[Edges] = ()
    constants: Sequence[Any] = ()

    def __post_init__(self) -> None:
        record_type_with(self.cls, [*self.key, *self._times, *self.fields])

    @property
    def _times(self) -> list[str]:
        return [] if self.event_time is None else [self.event_time]

    @property
    def key_types(self) -> tuple[Any, ...]:
        """The annotations of the key. Sources with the same annotations have the same keys."""
        fields = record_type_with(self.cls, self.key).fields or {}
        return tuple(fields[name].annotation for name in self.key)

    def drawn(self) -> st.SearchStrategy[Any]:
        """Return a strategy of the first argument of `made`."""
        apart = dict.fromkeys([*self.key, *self._times]) | dict(self.fields)
        others = fields_of(self.cls, apart, self.constants)
        exact = [st.sampled_from(of) for of in (self.distances, self.edges) if of]
        exactly: st.SearchStrategy[Any] = st.none()
        if self.event_time is not None and exact:
            instants = st.sampled_from([0, -1, 1])
            exactly = st.one_of(*[exactly] * 5, *[st.tuples(of, instants) for of in exact])
        return st.tuples(_PLACES, others, st.tuples(_OFFSETS, exactly))

    @property
    def numbers(self) -> list[str]:
        """The fields that may have any int."""
        fields = record_type_with(self.cls, ()).fields or {}
        own = [name for name, each in fields.items() if each.annotation is int]
        return [name for name in own if name not in (*self.key, *self._times, *self.fields)]

    def time_of(
        self, drawn: Any, reached: Reached, unit: dt.timedelta, before: dt.datetime | None
    ) -> dt.datetime:
        """Return the event time of a record.

        Parameters:
            reached: the event time before the epoch of the record.
            unit: the unit of event times.
            before: the time of the record before it; None if it is the first.
        """
        units: int
        behind: int
        _, _, ((units, behind), exactly) = drawn
        if exactly is not None:
            of: Edges | dt.timedelta
            instants: int
            of, instants = exactly
            if isinstance(of, Edges):
                return of.last_before(reached.begin + units * unit) + instants * _INSTANT
            if before is not None:
                return before + of + instants * _INSTANT
        if behind < _AT_THE_WATERMARK:
            return reached.begin + units * unit - behind * self.lateness / 4
        latest = reached.begin if reached.latest is None else reached.latest
        return latest - self.lateness + (behind - _AT_THE_WATERMARK) * _INSTANT

    def made(self, drawn: Any, keys: Sequence[Key], at: dt.datetime, large: int | None) -> Any:
        """Return a record; None if the class refuses its fields.

        Parameters:
            keys: the keys to choose from.
            at: the event time.
            large: the value of its int fields; None for the drawn values.
        """
        place, own, _ = drawn
        if large is not None:
            own = own | dict.fromkeys(self.numbers, large)
        of_key = dict(zip(self.key, keys[place % len(keys)], strict=True))
        return instance(self.cls, own | of_key | dict.fromkeys(self._times, at))


@dataclass(frozen=True)
class Given:
    """Records of a strategy that the user gave."""

    records: st.SearchStrategy[Any]
    key_types: tuple[Any, ...] = ()
    constants: Sequence[Any] = ()

    def drawn(self) -> st.SearchStrategy[Any]:
        """Return the strategy."""
        return self.records

    def time_of(self, drawn: Any, reached: Reached, *_: object) -> dt.datetime:
        """Return the begin of the epoch: the time of the record, if it has one, is not known."""
        return reached.begin

    def made(self, drawn: Any, *_: object) -> Any:
        """Return the record."""
        return drawn


def histories(
    cls: type[T],
    *,
    key: str | Sequence[str] = (),
    event_time: str | None = None,
    keys: int | Sequence[Any] = 4,
    lateness: dt.timedelta | str = dt.timedelta(0),
    epochs: int = 4,
    size: int = 8,
    **fields: st.SearchStrategy[Any],
) -> st.SearchStrategy[list[list[T]]]:
    """Return a strategy of the records of some epochs.

    Parameters:
        key: the fields of the key: a few keys occur, the first ones most often.
        event_time: the field with the event time: times rise from epoch to epoch, many are equal,
            some are out of order, and a few are so late that they are dropped.
        keys: the maximum number of keys; or the keys, as tuples if there are several fields.
        lateness: as for `@process`.
        epochs, size: the maximum numbers of epochs, and of records in each.
        fields: strategies of other fields, instead of those of their types.

    Raises:
        StateTypeError: the class has no such field, or an option is not valid.

    >>> from typing import NamedTuple
    >>> from hypothesis import find
    >>> class Click(NamedTuple):
    ...     user: str
    ...     at: dt.datetime
    >>> of_clicks = histories(Click, key="user", event_time="at", keys=["ada"])
    >>> find(of_clicks, lambda epochs: any(epochs))
    [[Click(user='ada', at=datetime.datetime(2026, 1, 1, 12, 0, tzinfo=datetime.timezone.utc))]]
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    late = dt.timedelta(microseconds=lateness_to_micros(lateness, "lateness"))
    made = Generated(cls, names, event_time, late, fields)
    of_all = histories_of({"records": [made]}, keys=keys, epochs=epochs, size=size)
    return of_all.map(lambda found: [epoch["records"] for epoch in found])


def histories_of(
    sources: Mapping[str, Sequence[Generated | Given]],
    *,
    keys: int | Sequence[Any] = 4,
    epochs: int = 4,
    epochs_min: int = 0,
    size: int = 8,
) -> st.SearchStrategy[list[dict[str, list[Any]]]]:
    """Return a strategy of the records of several sources in some epochs, by name.

    Parameters:
        sources: the records of each type, by source.
        keys, epochs, size: as for `histories`.
        epochs_min: the minimum number of epochs.

    Raises:
        StateTypeError: an option is not valid.
    """
    of = Epochs(sources, keys, size)
    _check_count("epochs", epochs)

    def assembled(drawn: tuple[Scene, list[Any]]) -> list[dict[str, list[Any]]]:
        scene, of_epochs = drawn
        made, reached = [], Reached(scene.begin)
        for each in of_epochs:
            reached, records = of.assembled(scene, reached, each)
            made.append(records)
        return made

    return st.tuples(of.scenes, st.lists(of.drawn, min_size=epochs_min, max_size=epochs)).map(
        assembled
    )


class Scene(NamedTuple):
    """Values that all epochs of a history share.

    Parameters:
        unit: the unit of times.
        keys: the keys that occur, by the types of their fields.
        begin: the event time at which the history begins.
        large: the place of a record, and the value of its ints; None if all ints are drawn.
    """

    unit: dt.timedelta
    keys: dict[str, list[Key]]
    begin: dt.datetime = NOON
    large: tuple[int, int] | None = None

    def large_at(self, place: int) -> int | None:
        """Return the ints of a record; None for drawn ones. If one record has the largest int, all
        others have zeros, so that a sum fits a state.
        """
        if self.large is None:
            return None
        chosen, number = self.large
        if chosen == place:
            return number
        return 0 if number == _LARGEST else None


class Reached(NamedTuple):
    """Event time that a history has reached.

    Parameters:
        begin: the begin of the last epoch.
        latest: the latest event time of all records; None if there are none.
        records: the number of records.
    """

    begin: dt.datetime = NOON
    latest: dt.datetime | None = None
    records: int = 0


class Epochs:
    """Epochs of several sources, one by one.

    Parameters:
        sources, keys, size: as for `histories_of`.

    Attributes:
        scenes: a strategy of the scene of all epochs.
        drawn: a strategy of an epoch, as the argument of `assembled`.
    """

    def __init__(
        self,
        sources: Mapping[str, Sequence[Generated | Given]],
        keys: int | Sequence[Any] = 4,
        size: int = 8,
    ) -> None:
        _check_count("size", size)
        self._members = {
            (name, n): of for name, some in sources.items() for n, of in enumerate(some)
        }
        pools = {
            repr(of.key_types): _keys(of.key_types, keys, of.constants)
            for of in self._members.values()
        }
        of_sources = {
            name: st.lists(
                st.one_of([st.tuples(st.just(n), of.drawn()) for n, of in enumerate(some)]),
                max_size=size,
            )
            for name, some in sources.items()
        }
        self.scenes = st.builds(Scene, _UNITS, st.fixed_dictionaries(pools), _BEGINS, _LARGE)
        self.drawn = st.tuples(st.integers(0, 30), st.fixed_dictionaries(of_sources))

    def assembled(
        self, scene: Scene, reached: Reached, drawn: Any
    ) -> tuple[Reached, dict[str, list[Any]]]:
        """Return the event time that an epoch reaches, and the records of each source.

        Parameters:
            reached: the event time before the epoch.
        """
        steps, epoch = drawn
        reached = reached._replace(begin=reached.begin + steps * scene.unit)
        latest, records = reached.latest, dict[str, list[Any]]()
        place, before = reached.records, reached.latest
        for name, of_source in epoch.items():
            records[name] = []
            for n, own in of_source:
                member = self._members[name, n]
                at = member.time_of(own, reached, scene.unit, before)
                keys = scene.keys[repr(member.key_types)]
                record = member.made(own, keys, at, scene.large_at(place))
                place += 1
                if is_made(record):
                    before = at
                    records[name].append(record)
                    latest = at if latest is None else max(latest, at)
        return reached._replace(latest=latest, records=place), records


def _check_count(name: str, count: int) -> None:
    if fault := int_fault(count, "give an int from 0"):
        raise StateTypeError(f"{name}={shown(count)}{fault}")


def _keys(
    types: tuple[Any, ...], keys: Any, constants: Sequence[Any]
) -> st.SearchStrategy[list[Key]]:
    """Return a strategy of different keys, as tuples."""
    if not types:
        return st.just([()])
    if isinstance(keys, Collection) and not isinstance(keys, str | bytes):
        return st.just([tuple(key) if len(types) > 1 else (key,) for key in keys])
    if fault := int_fault(keys, "give at least one key, or a list of keys", least=1):
        raise StateTypeError(f"keys={shown(keys)}{fault}")
    parts = [values(each, constants=constants) for each in types]
    return st.lists(st.tuples(*parts), min_size=1, max_size=keys, unique_by=repr)


_PLACES = st.just(0) | st.just(0) | st.integers(0, 11)
"""Places of the keys of records: two of three are the first one."""


_INSTANT = dt.timedelta(microseconds=1)

_CHANGES = [
    dt.datetime(2024, 2, 28, 23, 59, 50, tzinfo=dt.UTC),
    dt.datetime(2025, 12, 31, 23, 59, 50, tzinfo=dt.UTC),
    *(at.replace(tzinfo=dt.UTC) - 10 * _SECOND for at in CLOCK_CHANGES),
]
"""Ten seconds before 29 February, before the end of a year, and before clock changes."""

_BEGINS = st.just(NOON) | st.just(NOON) | st.sampled_from(_CHANGES)

_LARGEST = 2**63 - 1
_LARGE = st.one_of(
    *[st.none()] * 4,
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([0, 2**31 - 1, 2**31, 2**53, 2**53 + 1, -(2**31), -(2**53) - 1, _LARGEST]),
    ),
)
"""Large ints for one record of a history: a float, or 32 bits, cannot hold most of them."""

_UNITS = st.sampled_from([_SECOND, _SECOND, 60 * _SECOND, 3_600 * _SECOND])
"""Units of the times of a history: some jobs have timeouts of seconds, others of hours."""

_AT_THE_WATERMARK = 9

_OFFSETS = st.tuples(
    st.sampled_from([0, 1, 5, 12, 30]) | st.integers(-10, 40),
    st.just(0) | st.just(0) | st.just(_AT_THE_WATERMARK + 1) | st.integers(0, _AT_THE_WATERMARK),
)
"""Event time of a record, relative to the begin of its epoch: a number of units, and the distance
behind it, in quarters of the lateness; or exactly at the watermark, or an instant later.
"""
