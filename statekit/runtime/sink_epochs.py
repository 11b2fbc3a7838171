"""The protocol of sinks in the driver: open, write, publish, for one epoch after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from statekit.errors import StateTypeError, StorageError
from statekit.records.output_union import AnyOutput
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.stream_forms import columns_of
from statekit.sinks.protocol.frame_sinks import FrameSink
from statekit.sinks.protocol.output_schema import schema_for_sinks
from statekit.sinks.protocol.sink import Attempt, Outputs, Receipt, Sink, sink_failures

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
    _outputs: dict[str, Outputs] = field(default_factory=dict)
    _of_checkpoint: BaseException | None = None

    def begin(self, name: str, sink: Sink) -> None:
        """Have a sink check its target, before the first epoch of a run.

        Raises:
            ProcessError: the sink failed.
        """
        with sink_failures(f"sink {name!r}", self.coordinator.epoch, self._passes):
            sink.begin(self._outputs_of(name))

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[Attempt]:
        """Write an epoch to a sink within this block. The owner has been checked.

        Raises:
            ProcessError: the sink failed.
        """
        coordinator = self.coordinator
        attempt = Attempt(
            outputs=self._outputs_of(name),
            epoch=coordinator.epoch,
            writer=coordinator.writer,
            is_first=name not in self._written,
            without_outputs=coordinator.without_outputs,
            check_owner=self._check_owner,
        )
        with sink_failures(f"sink {name!r}", coordinator.epoch, self._passes):
            yield attempt
        self._written.add(name)

    def _check_owner(self) -> None:
        """Check the owner for a sink, and remember an error: it is about the checkpoint."""
        try:
            self.coordinator.check_owner()
        except StorageError as error:
            self._of_checkpoint = error
            raise

    def _passes(self, error: BaseException) -> bool:
        return error is self._of_checkpoint or self.passes(error)

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

    def _outputs_of(self, name: str) -> Outputs:
        if name not in self._outputs:
            job = self.coordinator.job
            (stream,) = (sink.stream for sink in job.sinks if sink.name == name)
            schema = schema_for_sinks(columns_of(job, stream).arrow_schema)
            self._outputs[name] = Outputs(self.coordinator.job_file.id, name, schema)
        return self._outputs[name]

    def run_again(self) -> None:
        """Expect another attempt at the epoch: each sink is written once more."""
        self._written.clear()


def output_batches(output_type: AnyOutput, outputs: list[object]) -> Iterator[pa.RecordBatch]:
    """Yield outputs as columns.

    Raises:
        StateTypeError: the declared type has no Arrow schema.
        ProcessError: an output does not fit it.
    """
    schema = schema_for_sinks(output_type.arrow_schema)
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
