"""Records of the sources of a job: given ones, or generated ones of their types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

from statekit.codec.annotations import struct_fields
from statekit.errors import StatekitError, StateTypeError
from statekit.job.plan import Input, Operator, Plan
from statekit.job.windows.aggregated_result import AggregatedResult
from statekit.job.windows.window_kind import Window
from statekit.records.record_type import RecordType
from statekit.shown import shown

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from statekit.testing.histories import Edges, Generated, Given

History = list[dict[str, list[Any]]]
"""The records of each source, epoch by epoch."""

Events = Any
"""A strategy of records, or records as examples; of a job with several sources, by their names."""

DISTANCE_MAX = dt.timedelta(days=400)
"""Limit of the durations that are tried: longer ones would leave the years of histories."""


class SourceRecords:
    """Records of the sources of a job.

    Parameters:
        job: the job.
        constants: numbers, texts and durations in the code of its functions.
    """

    def __init__(self, job: Plan, constants: Sequence[Any]) -> None:
        self._job, self._constants = job, constants

    def histories(self, events: Events = None) -> SearchStrategy[History]:
        """Return a strategy of histories.

        Parameters:
            events: records of the sources; None makes them of their types.

        Raises:
            StateTypeError: a source has records of unknown fields, or there is no such source.
        """
        from statekit.testing.histories import histories_of

        return histories_of(self.records(events), epochs_min=1)

    def records(self, events: Events = None) -> dict[str, Sequence[Generated | Given]]:
        """Return the generated or given records of each source, as arguments of `histories_of`."""
        given = self._by_source(events)
        return {source.name: self._members(source, given) for source in self._job.sources}

    def _by_source(self, events: Events) -> dict[str, Any]:
        names = [source.name for source in self._job.sources]
        if events is None:
            return {}
        if not isinstance(events, Mapping):
            if len(names) > 1:
                raise StateTypeError(
                    f"events={shown(events, 100)}: {self._job.name!r} has the sources "
                    f"{', '.join(names)}: give a dict, as events={{{names[0]!r}: [...]}}"
                )
            return {names[0]: events}
        self.check_sources("events", events)
        return dict(events)

    def check_sources(self, argument: str, given: Iterable[str]) -> None:
        """Check that names are those of sources.

        Parameters:
            argument: the name of the argument that has the names, for messages.

        Raises:
            StateTypeError: there is no such source.
        """
        names = [source.name for source in self._job.sources]
        if unknown := [name for name in given if name not in names]:
            raise StateTypeError(
                f"{argument}= names {shown(unknown[0])}: the sources of {self._job.name!r} are "
                f"{', '.join(names)}"
            )

    def check_records(self, argument: str, epoch: Mapping[str, Iterable[Any]]) -> None:
        """Check that the records of an epoch are those of the sources.

        Parameters:
            argument: the name of the argument that has the records, for messages.

        Raises:
            StateTypeError: one is not of the type of its source.
        """
        for source in self._job.sources:
            for record in epoch.get(source.name, ()):
                _record_of(argument, source, record)

    def _members(self, source: Input, given: Mapping[str, Any]) -> Sequence[Generated | Given]:
        """Return the given records of a source, or generated records of each of its types."""
        from hypothesis import strategies as st

        from statekit.testing.histories import Given

        if source.name not in given:
            return [self._generated(source, record) for record in source.record_type.members]
        records = given[source.name]
        if isinstance(records, st.SearchStrategy):
            return [Given(records.map(partial(_record_of, "events", source)))]
        return [Given(st.sampled_from(self._examples(source, records)))]

    def _examples(self, source: Input, given: Any) -> list[Any]:
        """Return the records that the user gave as examples.

        Raises:
            StateTypeError: they are no list, there are none, or one is not of the source's type.
        """
        if not isinstance(given, Sequence | Set) or isinstance(given, str | bytes):
            raise StateTypeError(
                f"events={shown(given, 100)}: give a list of records, as events=[...]"
            )
        if hasattr(given, "_fields"):
            raise StateTypeError(f"events={shown(given, 100)}: give a list of records, also of one")
        if not given:
            raise StateTypeError(
                f"events={shown(given)}: give at least one record, or leave it out"
            )
        return [_record_of("events", source, record) for record in given]

    def _generated(self, source: Input, record: RecordType) -> Generated:
        """Return generated records of a type, with the key and the event time of an operator that
        reads them.
        """
        from statekit.testing.histories import Generated

        if record.fields is None:
            raise StateTypeError(
                f"source {source.name!r} of {self._job.name!r} has dicts, which do not say which "
                "fields they have: give examples with events=[...], or annotate the parameter with "
                "a NamedTuple, a dataclass, a TypedDict or the like"
            )
        fields = [own.name for own in struct_fields(record.cls)]
        key: tuple[str, ...] = ()
        event_time: str | None = None
        late_us = 0
        for operator in self._readers(source):
            declared = operator.declared
            if not key and set(declared.key) <= set(fields):
                key = declared.key
            if event_time is None and declared.event_time in fields:
                event_time = declared.event_time
                late_us = declared.lateness_us
        late = dt.timedelta(microseconds=late_us)
        return Generated(
            record.cls,
            key,
            event_time,
            late,
            distances=self._distances(source),
            edges=self._edges(source),
            constants=self._constants,
        )

    def _distances(self, source: Input) -> list[dt.timedelta]:
        """Return the durations of windows, TTLs and lateness of the operators that read a source,
        and the durations in the code of the functions.
        """
        micros: list[int] = []
        found: list[dt.timedelta] = []
        for operator in self._readers(source):
            if (window := _window_of(operator)) is not None:
                found += window.durations
            micros.append(operator.declared.lateness_us)
            micros += [spec.ttl.duration_us for spec in operator.declared.states if spec.ttl]
        found += [dt.timedelta(microseconds=each) for each in micros]
        of_code = [each for each in self._constants if isinstance(each, dt.timedelta)]
        found += [each for each in of_code if abs(each) <= DISTANCE_MAX]
        return [each for each in dict.fromkeys(found) if each]

    def _edges(self, source: Input) -> list[Edges]:
        """Return the begins and ends of the windows of the operators that read a source."""
        from statekit.testing.histories import Edges

        windows = filter(None, map(_window_of, self._readers(source)))
        found = [Edges(*edge) for window in windows for edge in window.edges]
        return list(dict.fromkeys(found))

    def _readers(self, source: Input) -> list[Operator]:
        """Return the operators that take the records of a source, perhaps behind transforms."""
        return [
            operator
            for operator in self._job.operators
            if any(self._job.origin_of(stream) == source.name for stream in operator.streams)
        ]


def _window_of(operator: Operator) -> Window | None:
    """Return the kind of windows of an operator; None if it has none."""
    made_of = operator.declared.traits.made_of
    return made_of.window if isinstance(made_of, AggregatedResult) else None


def _record_of(argument: str, source: Input, given: Any) -> Any:
    """Return a record of an argument, after checking that it is a record of the source.

    Raises:
        StateTypeError: it is not.
    """
    try:
        source.record_type.coerce(given)
    except StatekitError as error:
        raise StateTypeError(f"{argument}= has {shown(given, 100)}: {error}") from error
    return given
