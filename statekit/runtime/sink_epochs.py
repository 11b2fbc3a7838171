"""The protocol of sinks in the driver: open, write, publish, for one epoch after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from statekit.errors import StateTypeError
from statekit.records.output_union import AnyOutput
from statekit.runtime.coordinator import Coordinator
from statekit.sinks.frame_sinks import FrameSink
from statekit.sinks.sink import Attempt, Part, Receipt, Sink, sink_failures

_BATCH_ROWS = 10_000
"""Rows of a batch that a process hands to a sink."""


@dataclass(eq=False, repr=False)
class SinkEpochs:
    """Writes the outputs of epochs to the sinks of a run.

    Parameters:
        coordinator: of the run.
        passes: whether an error is not about a sink, and raised as it is.
    """

    coordinator: Coordinator
    passes: Callable[[BaseException], bool] = lambda error: False
    _written: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[Attempt]:
        """Write an epoch to a sink within this block.

        Raises:
            FencedError: another run has committed the epoch.
            ProcessError: the sink failed.
        """
        coordinator = self.coordinator
        attempt = Attempt(
            epoch=coordinator.epoch,
            writer=coordinator.writer,
            is_first=name not in self._written,
            without_outputs=coordinator.without_outputs,
            check_owner=coordinator.check_owner,
        )
        attempt.check_owner()
        with sink_failures(name, coordinator.epoch, self.passes):
            yield attempt
        self._written.add(name)

    def write(self, name: str, sink: Sink, stage: Callable[[Attempt], Sequence[Receipt]]) -> None:
        """Stage and publish the outputs of the next epoch.

        Parameters:
            stage: writes all parts, and returns their receipts.
        """
        with self.attempt(name) as attempt:
            sink.open(attempt)
            receipts = stage(attempt)
            attempt.check_owner()  # from here on, what another run has published is replaced
            if attempt.is_first and attempt.without_outputs:
                sink.abandon(attempt.without_outputs)
            sink.publish(attempt, receipts)

    def run_again(self) -> None:
        """Expect another attempt at the epoch: each sink is written once more."""
        self._written.clear()


def staged_in_process(
    sink: Sink, attempt: Attempt, batches: Iterator[pa.RecordBatch]
) -> list[Receipt]:
    """Write the outputs of an epoch in this process, as one part."""
    first = next(batches, None)
    if first is None:
        return []

    def whole() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    receipt = sink.write(Part(attempt.epoch, attempt.writer, 0), whole())
    return [] if receipt is None else [receipt]


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema of outputs for sinks. In any runtime, fields of all levels are nullable,
    except keys of maps: Spark fills the fields of an absent struct with nulls.

    >>> place = pa.struct([pa.field("town", pa.string(), nullable=False)])
    >>> nullable(pa.schema([pa.field("place", place, nullable=False)]))
    place: struct<town: string>
      child 0, town: string
    """
    return pa.schema(list(map(_nullable, schema)))


def _nullable(field: pa.Field) -> pa.Field:
    type_, types = field.type, pa.types
    if types.is_struct(type_):
        type_ = pa.struct(list(map(_nullable, type_.fields)))
    elif types.is_map(type_):
        key = _nullable(type_.key_field).with_nullable(False)
        type_ = pa.map_(key, _nullable(type_.item_field))
    elif types.is_list(type_):
        type_ = pa.list_(_nullable(type_.value_field))
    return field.with_type(type_).with_nullable(True)


def output_batches(output_type: AnyOutput, outputs: list[object]) -> Iterator[pa.RecordBatch]:
    """Yield outputs as columns.

    Raises:
        StateTypeError: the declared type has no Arrow schema.
        ProcessError: an output does not fit it.
    """
    schema = nullable(output_type.arrow_schema)
    for start in range(0, len(outputs), _BATCH_ROWS):
        yield output_type.to_batch(outputs[start : start + _BATCH_ROWS]).cast(schema)


def check_directories(targets: Iterable[object]) -> None:
    """Check that no two sinks of a run write to one directory.

    Raises:
        StateTypeError: two of them do.
    """
    sinks = [target for target in targets if isinstance(target, Sink | FrameSink)]
    directories = [sink.directory for sink in sinks if sink.directory is not None]
    if len(set(directories)) != len(directories):
        raise StateTypeError(
            f"outputs= has two sinks in one directory ({sorted(directories)}): give each its own"
        )
