"""Services that a shard asks: one call per record, or per batch of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice, repeat
from typing import Any

from statekit.calls.open_calls import OpenCalls
from statekit.calls.service_call import ServiceCall, ServiceError
from statekit.records.keyed_batch import KeyedBatch


@dataclass
class Question:
    """The records of a call, and their outputs.

    Parameters:
        number: of the call.
        records: the records.
        inputs: the number of the input of each.
        outputs: of each record, after the call.
        failed: the error, if all attempts have failed.
    """

    number: int
    records: Sequence[Any]
    inputs: Sequence[int]
    outputs: list[list[Any]] = field(default_factory=list)
    failed: ServiceError | None = None


def questions(batches: Iterator[KeyedBatch], size: int | None) -> Iterator[Question]:
    """Yield the records of batches as questions. Records are read on demand.

    Parameters:
        size: the largest number of records of a question; None for one.
    """
    records = chain.from_iterable(
        zip(batch.records, batch.inputs or repeat(0), strict=False) for batch in batches
    )
    for number in count():
        some = list(islice(records, size or 1))
        if not some:
            return
        asked, inputs = zip(*some, strict=True)
        yield Question(number, asked, inputs)


def answers(call: ServiceCall, asked: Iterator[Question], *, goes_on: bool) -> Iterator[Question]:
    """Ask a service many questions at a time, and yield them with their outputs.

    Parameters:
        goes_on: yield questions that have failed, too. Else the first failure ends all calls.

    Raises:
        ServiceError: all attempts of a call have failed.
        ProcessError: a result does not fit the annotation of the function.
    """
    calls = OpenCalls(
        partial(_answered, call, goes_on), concurrency=call.concurrency, ordered=call.ordered
    )
    return calls.results(asked)


async def _answered(call: ServiceCall, goes_on: bool, question: Question) -> Question:
    try:
        question.outputs = await call.outputs(question.records, question.number)
    except ServiceError as failed:
        if not goes_on:
            raise
        question.failed = failed
    return question
