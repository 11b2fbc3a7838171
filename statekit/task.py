"""The core: records of one shard in, outputs and mutations out.

What lives here: the loop that visits keys, calls the user's function and collects what it does.
What does not: where records come from, where rows are kept and what becomes of the mutations. The
loop does no I/O but reads through the backend, so the same code runs in a test, in a local job and
in a Spark worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Any, NamedTuple

from statekit.backend import Backend, StateSize
from statekit.errors import ProcessError, StatekitError, StateTypeError
from statekit.mutation import Batch
from statekit.process import Context, Process
from statekit.state import Visit

__all__ = ["Chunk", "ShardTask"]

# Outputs are handed on in lists of about this length; one call that yields more is cut up, so
# that a function may stream a state of any size.
OUTPUTS_MAX = 10_000

_NOTHING: Any = object()
_pack_group = Struct(">H").pack


class Chunk(NamedTuple):
    """Some records of one shard, as parallel sequences sorted by key group, key and arrival.

    Parameters:
        tokens: equal for neighbours of one key, different for different keys; often the keys.
        groups: the key group of each record.
        keys: the key of each record, a scalar or a tuple.
        records: as the process function takes them.
    """

    tokens: Sequence[Any]
    groups: Sequence[int]
    keys: Sequence[Any]
    records: Sequence[Any]


class ShardTask:
    """One shard of one operator in one epoch.

    Parameters:
        declared: the process function.
        operator: its name in the job.
        epoch: the number of the epoch.
        shard: the number of the shard.
        backend: holds the shard's rows as they were before the epoch.
        spill: takes a batch that has grown full; must apply it to the backend.
    """

    def __init__(
        self,
        declared: Process[Any, Any, Any],
        *,
        operator: str,
        epoch: int,
        shard: int,
        backend: Backend,
        spill: Callable[[Batch], None],
    ) -> None:
        self._declared = declared
        self._spill_batch = spill
        self.batch = Batch()
        self.visit = Visit(operator, epoch, self.batch, self._spill)
        self._states = {spec.name: spec.bind(self.visit, backend) for spec in declared.states}
        self._call, self._arguments = declared.bind(self._states, Context(self.visit, shard))
        self._encode_key = declared.key_codec.encode
        self._group, self._packed_group = -1, b""
        self._token: Any = _NOTHING
        self._leaving = False
        self.records_in = 0
        self.records_out = 0

    def run(self, chunk: Chunk) -> Iterator[list[Any]]:
        """Handle a chunk; outputs come in lists.

        A key may go on in the next chunk. Call `finish` after the last one.

        Raises:
            ProcessError: the user's function, or a key, failed.
            StateTypeError: a state was given what it cannot hold.
        """
        call, arguments, enter = self._call, self._arguments, self._enter
        current = self._token
        outputs: list[Any] = []
        extend = outputs.extend
        record: Any = _NOTHING
        try:
            for token, group, key, record in zip(*chunk, strict=True):
                if token != current:
                    enter(group, key, record)
                    current = self._token = token
                emitted = call(record, *arguments)
                if emitted is None:
                    continue
                extend(islice(emitted, OUTPUTS_MAX))
                if len(outputs) >= OUTPUTS_MAX:
                    more = iter(emitted)
                    if more is not emitted:  # a list, say, which starts again
                        more = islice(more, OUTPUTS_MAX, None)
                    while len(outputs) >= OUTPUTS_MAX:
                        self.records_out += len(outputs)
                        yield outputs[:]
                        outputs.clear()
                        extend(islice(more, OUTPUTS_MAX))
        except StatekitError as error:
            if not self._leaving:
                error.add_note(f"while operator {self.visit.operator!r} handled {_shown(record)}")
            raise
        except Exception as error:
            raise self._failed(error, record) from error
        self.records_in += len(chunk.records)
        if outputs:
            self.records_out += len(outputs)
            yield outputs

    def finish(self) -> dict[str, StateSize]:
        """Leave the last key. What remains to be applied is then in `batch`.

        Returns by how much each state grew or shrank.
        """
        self.visit.leave()
        self._token = _NOTHING
        return {n: StateSize(s.rows_added, s.bytes_added) for n, s in self._states.items()}

    def _enter(self, group: int, key: Any, record: Any) -> None:
        """Leave the current key and go to another."""
        visit = self.visit
        touched = visit.touched
        if touched:
            self._leaving = True  # an error is about the key that is left, not about this record
            for state in touched:
                state._leave()
            touched.clear()
            self._leaving = False
        if group != self._group:
            self._group, self._packed_group = group, _pack_group(group)
        try:
            prefix = self._packed_group + self._encode_key(key)
        except StateTypeError as error:
            fields = ", ".join(self._declared.key)
            raise ProcessError(
                f"operator {visit.operator!r}: key ({fields}) = {key!r} of record {_shown(record)} "
                f"cannot be a key: {error}"
            ) from error
        # Keys come in order. One that does not was visited before: its rows may be in the batch,
        # where reads do not look.
        if prefix <= visit.prefix or self.batch.full:
            self._spill()
        visit.prefix = prefix
        visit.key = key

    def _spill(self) -> None:
        if len(self.batch):
            self._spill_batch(self.batch)
            self.batch.clear()

    def _failed(self, error: Exception, record: Any) -> ProcessError:
        visit = self.visit
        return ProcessError(
            f"operator {visit.operator!r} failed at key {visit.key!r} in epoch {visit.epoch} with "
            f"{type(error).__name__}: {error}; the record was {_shown(record)}. Nothing of this "
            "epoch is committed: correct the function or the record, then start the job again"
        )


def _shown(record: object) -> str:
    text = repr(record)
    return text if len(text) <= 500 else f"{text[:500]}…"
