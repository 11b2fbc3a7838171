"""The streams of one epoch in this process: each consumer gets records of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from statekit.errors import ProcessError
from statekit.job.plan import Operator, Plan
from statekit.records.output_type import OutputType
from statekit.records.record_type import RecordType
from statekit.records.union import Records


class SourceForm:
    """The form of records that a caller passes for a source.

    The class has computed its fields already, once, as for rows of a frame.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        # Other record types, such as rows of Spark, create new records in `coerce`.
        self._by_class = {
            member.cls: OutputType(member.cls, f"{records.where}, input", noun="record")
            for member in records.members
            if type(member) is RecordType
        }

    def taken(self, given: Iterable[Any]) -> list[Any]:
        """Return the records of the caller in their stored form, as objects of their own.

        An instance whose fields do not fit their types is passed on unchanged: its class accepted
        it, and an error is raised where the value is used.

        Raises:
            ProcessError: a record is not of the source's type.
        """
        records = list(map(self._records.coerce, given))
        return self._each(records, lambda form, some: _stored(form, form.copies(some)))

    def received(self, stored: list[Any]) -> list[Any]:
        """Return the records that an operator receives for stored ones."""
        return stored

    def copies(self, stored: list[Any]) -> list[Any]:
        """Return copies of the records for another consumer, which may change them."""
        return self._each(stored, lambda form, some: form.copies(some))

    def _each(
        self, records: list[Any], convert: Callable[[OutputType, list[Any]], list[Any]]
    ) -> list[Any]:
        """Apply a function to the records of each class, and keep their order."""
        if not self._by_class or not records:
            return records
        if len(self._by_class) == 1:
            (form,) = self._by_class.values()
            return convert(form, records)
        results = list(records)
        for cls, form in self._by_class.items():
            places = [place for place, record in enumerate(records) if type(record) is cls]
            own = convert(form, [records[place] for place in places])
            for place, record in zip(places, own, strict=True):
                results[place] = record
        return results


def _stored(form: OutputType, records: list[Any]) -> list[Any]:
    """Return the stored form of records. Records that do not fit their type are unchanged."""
    try:
        return form.stored(records)
    except ProcessError:
        if len(records) == 1:
            return records
        middle = len(records) // 2
        return _stored(form, records[:middle]) + _stored(form, records[middle:])


RecordForm = SourceForm | OutputType
"""The type of a stream's records."""


class RecordStreams:
    """The records of all streams in one epoch.

    Parameters:
        plan: which operators and sinks consume which stream.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._parts: dict[str, list[tuple[list[Any], RecordForm]]] = {}

    def put(self, stream: str, records: list[Any], form: RecordForm | None) -> None:
        """Add the stored records of a source or operator.

        Parameters:
            form: of the records; None for an operator that emits nothing.
        """
        self._parts[stream] = [] if form is None else [(records, form)]

    def put_late(self, operator: Operator, is_late: Callable[[Any], bool]) -> None:
        """Add the late records of an operator's inputs."""
        parts = []
        for stream in operator.inputs:
            for records, form in self._parts[stream]:
                received = zip(records, form.received(records), strict=True)
                parts.append(([record for record, read in received if is_late(read)], form))
        self._parts[operator.late] = parts

    def for_operator(self, stream: str) -> list[Any]:
        """Return the records of a stream for one operator, or for one shard of a broadcast."""
        return [record for own, form in self._own(stream) for record in form.received(own)]

    def for_sink(self, stream: str) -> list[Any]:
        """Return the records of a stream for one sink."""
        return [record for own, _ in self._own(stream) for record in own]

    def _own(self, stream: str) -> list[tuple[list[Any], RecordForm]]:
        """Return the records of a stream for one consumer: copies if there are others."""
        parts = self._parts[stream]
        if not self._is_shared(stream):
            return parts
        return [(form.copies(records), form) for records, form in parts]

    def _is_shared(self, stream: str) -> bool:
        uses = len(self._plan.sinks_of(stream))
        for operator in self._plan.operators:
            if stream in operator.broadcasts:
                return True  # to any number of shards
            if stream in operator.inputs:
                uses += 2 if self._plan.wants_late(operator) else 1
        return uses > 1
