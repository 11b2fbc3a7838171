"""The record types of streams, as records in this process and as columns for sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, reduce
from operator import or_
from typing import Any

from statekit.errors import ProcessError
from statekit.job.plan import Plan
from statekit.records.declaration import BesideFields, ForeignValue
from statekit.records.output_type import OutputType
from statekit.records.output_union import AnyOutput, of_each_class, output_type_of
from statekit.records.record_type import RecordType
from statekit.records.union import Records


class SourceForm:
    """The form in which a caller passes the records of a source.

    The caller's class has computed derived fields already; they are not computed again.
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
        """Return the records of the caller in their stored form, as new objects.

        An instance whose fields do not fit their types is passed on unchanged: its class accepted
        it, and an error is raised where the value is used.

        Raises:
            ProcessError: a record is not of the source's type, or has attributes beside its fields.
        """
        records = list(map(self._records.coerce, given))
        return self._each(records, lambda form, some: _stored(form, form.copies(some)))

    def copies(self, stored: list[Any]) -> list[Any]:
        """Return copies of the records for another consumer, which may change them."""
        return self._each(stored, lambda form, some: form.copies(some))

    @cached_property
    def output_type(self) -> AnyOutput:
        """The type of the records as outputs, for a source that leads to a sink."""
        classes = [member.cls for member in self._records.members]
        return output_type_of(reduce(or_, classes), self._records.where, "record")

    def _each(
        self, records: list[Any], convert: Callable[[OutputType, list[Any]], list[Any]]
    ) -> list[Any]:
        """Apply a function to the records of each class, and keep the order of all records."""
        return of_each_class(records, self._by_class, convert) if self._by_class else records


def _stored(form: OutputType, records: list[Any]) -> list[Any]:
    """Return the stored form of records. Records that do not fit their type are unchanged."""
    try:
        return form.stored(records)
    except ProcessError as error:
        if isinstance(error.__cause__, BesideFields | ForeignValue):
            raise
        if len(records) == 1:
            return records
        middle = len(records) // 2
        return _stored(form, records[:middle]) + _stored(form, records[middle:])


RecordForm = SourceForm | AnyOutput
"""The record type of a stream."""


def columns_of(job: Plan, stream: str) -> AnyOutput:
    """Return the type of the records of a stream with a sink, which has their columns."""
    if job.is_source(stream) or any(operator.late == stream for operator in job.operators):
        records = job.record_of(stream)
        assert records is not None, "it has records"
        return SourceForm(records).output_type
    output_type = job.output_of(stream)
    assert output_type is not None, "Stream.sink checks it"
    return output_type
