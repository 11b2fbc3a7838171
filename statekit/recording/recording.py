"""Recording: writes and reads the records of a shard in one attempt at an epoch, in parts, and
removes the oldest ones.

    <epoch>/<operator>/<shard>-<attempt>.<part>

A part is a checksum of the rest of the part, a line of JSON, and a pickled list of broadcast
records and keyed batches. Records are encoded by the codec of their types, so that another script
can read records of a script's classes. Records that the codec does not accept are pickled.
"""

from __future__ import annotations

import copy
import json
import logging
import pickle
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from statekit.checkpoint.manifest import ShardPlan
from statekit.checkpoint.store import Store
from statekit.clock import unique_id
from statekit.codec.value_codec import ValueCodec, value_codec
from statekit.errors import CorruptCheckpointError, QueryError, StateTypeError, StorageError
from statekit.functions.process import Process
from statekit.recording.recorder import Recorder
from statekit.records import by_value
from statekit.records.keyed_batch import BroadcastRecords, KeyedBatch
from statekit.records.union import Records

_LOG = logging.getLogger("statekit.recorder")
_VERSION = 1
_PART_BYTES = 64 * 1024
"""Minimum size of a part: smaller batches are buffered. The first batch is always written at once,
since it may be the one that kills the process.
"""

_BYTES_OF_A_RECORD = 40  # an estimate, to decide when a part is large enough

_FOLDER = re.compile(r"([0-9]{20})/")
_NAME = re.compile(r"([0-9]{20})/([^/]+)/([0-9]+)-([0-9a-f]{32})\.([0-9]{6})")

_Part = tuple[str, int, Any]
"""Kind ("broadcast" or "batch"), number of the broadcast input, and the records or the batch."""


def folder_of(epoch: int) -> str:
    """Return the folder of the records of an epoch."""
    return f"{epoch:020d}"


def epoch_of(path: str) -> int | None:
    """Return the epoch of the folder of a file; None if it is not in the folder of an epoch.

    >>> epoch_of(f"{folder_of(12)}/count/0-{'a' * 32}.000001"), epoch_of("tmp/draft")
    (12, None)
    """
    match = _FOLDER.match(path)
    return None if match is None else int(match[1])


class RecordForm:
    """The stored form of records of given types.

    Parameters:
        records: the types; None to pickle all records.
    """

    def __init__(self, records: Records | None) -> None:
        self._codec: ValueCodec[Any] | None = None
        if records is not None and all(of.fields is not None for of in records.members):
            try:
                self._codec = value_codec(records.cls)
            except StateTypeError:
                self._codec = None  # types without a codec: their records are pickled

    def stored(self, records: Sequence[Any]) -> list[Any]:
        """Return the stored form of records."""
        return [self._stored(record) for record in records]

    def _stored(self, record: Any) -> tuple[bool, Any]:
        if self._codec is not None and self._codec.accepts(record):
            return True, self._codec.encode(record)
        return False, copy.deepcopy(record)  # the function may change it before it is written

    def read(self, stored: Iterable[Any]) -> list[Any]:
        """Return the records of their stored form.

        Raises:
            CorruptCheckpointError: their types have changed so much that they cannot be read.
        """
        decode = None if self._codec is None else self._codec.decode
        found = []
        for is_encoded, record in stored:
            if is_encoded and decode is None:
                raise CorruptCheckpointError(
                    "recorded records are of a type that the function no longer takes: replay them "
                    "with the code that recorded them"
                )
            found.append(decode(record) if is_encoded and decode is not None else record)
        return found


class Recording:
    """Writes the records of a shard in one attempt at an epoch.

    If a part cannot be written, the failure is logged, and the job continues.

    Parameters:
        store: the recorder's.
        process: the function that gets the records.
        plan: the shard and the times of the epoch.
        shards: the number of shards.
        limit_bytes: limit of the written bytes.
    """

    def __init__(
        self,
        store: Store,
        process: Process[Any, Any, Any],
        plan: ShardPlan,
        shards: int,
        limit_bytes: int,
    ) -> None:
        self._store = store
        self._plan = plan
        self._shards = shards
        self._left_bytes = limit_bytes
        self._path = f"{folder_of(plan.epoch)}/{plan.operator}/{plan.shard}-{unique_id()}"
        columns = process.traits.takes_columns
        self._form = RecordForm(None if columns else process.taken)
        self._broadcast_form = RecordForm(process.handlers.record_type)
        self._parts = 0
        self._waiting: list[_Part] = []
        self._waiting_bytes = 0
        self._state = "open"

    def add_broadcast(self, broadcast: BroadcastRecords) -> None:
        """Add broadcast records, before the function processes them."""
        number, records = broadcast
        self._add(("broadcast", number, self._broadcast_form.stored(records)))

    def add(self, batch: KeyedBatch) -> None:
        """Add records, before the function processes them."""
        stored = batch._replace(records=self._form.stored(batch.records), prefixes=())
        self._add(("batch", 0, tuple(map(list, stored))))

    def _add(self, part: _Part) -> None:
        if self._state != "open":
            return
        self._waiting.append(part)
        records = part[2][0] if part[0] == "batch" else part[2]
        self._waiting_bytes += _BYTES_OF_A_RECORD * len(records)
        if self._parts == 0 or self._waiting_bytes >= _PART_BYTES:
            self._write("open")

    def close(self, *, is_whole: bool) -> None:
        """Write the buffered records as the last part.

        Parameters:
            is_whole: True if the function has processed all records.
        """
        if self._state == "open":
            self._write("whole" if is_whole else "failed")

    def _write(self, state: str) -> None:
        """Write the buffered records as a part.

        Parameters:
            state: "open" if more may follow; "whole", "failed" or "cut" in the last part.
        """
        content = by_value.dumps(self._waiting)
        if len(content) > self._left_bytes:
            content, state = by_value.dumps([]), "cut"
        self._left_bytes -= len(content)
        self._waiting, self._waiting_bytes, self._state = [], 0, state
        head = {
            "statekit recording": _VERSION,
            "checkpoint": self._plan.checkpoint_id,
            "shards": self._shards,
            "watermark_us": self._plan.watermark_us,
            "processing_time_us": self._plan.processing_time_us,
            "state": state,
        }
        try:
            name = f"{self._path}.{self._parts:06d}"
            self._store.create(name, _sealed(head, content))
        except StorageError as error:
            self._state = "failed"
            _LOG.warning(
                "records of shard %d of %s in epoch %d are not recorded any further: %s",
                self._plan.shard,
                self._plan.operator,
                self._plan.epoch,
                error,
            )
        self._parts += 1


@dataclass
class Recorded:
    """The recorded input of an attempt.

    Parameters:
        operator, epoch, shard: of the attempt.
        checkpoint: the id of the checkpoint.
        shards: the number of shards of the operator.
        watermark_us, processing_time_us: the times of the epoch.
        state: "whole"; "failed" if the function failed, "open" if its process was killed, "cut" if
            there were more records than the limit allowed.
        broadcast: of each broadcast input.
        batches: in the order in which the function processed them.
    """

    operator: str
    epoch: int
    shard: int
    checkpoint: str = ""
    shards: int = 0
    watermark_us: int = 0
    processing_time_us: int = 0
    state: str = "open"
    broadcast: list[BroadcastRecords] = field(default_factory=list)
    batches: list[KeyedBatch] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(len(batch.tokens) for batch in self.batches) + sum(
            len(records) for _, records in self.broadcast
        )


def recorded(
    store: Store, process: Process[Any, Any, Any], name: str, epoch: int
) -> list[Recorded]:
    """Return the recorded input of an operator in an epoch, one attempt for each shard.

    An attempt in which the function processed all records is preferred, then the one with the most.

    Parameters:
        store: the recorder's.
        process: the function of the operator.
        name: of the operator.

    Raises:
        QueryError: nothing was recorded, or the records exceeded the limit.
        CorruptCheckpointError: a part is damaged or missing.
    """
    attempts: dict[tuple[int, str], dict[int, str]] = {}
    for path in store.tree(folder_of(epoch)):
        match = _NAME.fullmatch(path)
        if match is not None and match[2] == name:
            attempts.setdefault((int(match[3]), match[4]), {})[int(match[5])] = path
    found: dict[int, Recorded] = {}
    for (shard, _), parts in sorted(attempts.items()):
        attempt = _read(store, process, Recorded(name, epoch, shard), parts)
        best = found.get(shard)
        if best is None or (attempt.state == "whole", attempt.records) > (
            best.state == "whole",
            best.records,
        ):
            found[shard] = attempt
    if not found:
        raise QueryError(
            f"{store.url} has no records of {name} in epoch {epoch}: {_kept(store, name)}"
        )
    for attempt in found.values():
        if attempt.state == "cut":
            raise QueryError(
                f"{store.url} has not all records of shard {attempt.shard} of {name} in epoch "
                f"{epoch}: there were more than the limit allows. Record fewer shards, or give the "
                "Recorder a larger limit"
            )
    return [found[shard] for shard in sorted(found)]


def _kept(store: Store, name: str) -> str:
    """Return the recorded epochs of an operator as text, for an error."""
    matches = filter(None, map(_NAME.fullmatch, store.tree("")))
    epochs = sorted({int(match[1]) for match in matches if match[2] == name})
    if not epochs:
        return "it has no records of that operator in any epoch"
    return f"it has those of the epochs {', '.join(map(str, epochs))}"


def _read(
    store: Store, process: Process[Any, Any, Any], found: Recorded, parts: dict[int, str]
) -> Recorded:
    form = RecordForm(None if process.traits.takes_columns else process.taken)
    broadcast_form = RecordForm(process.handlers.record_type)
    for number in range(len(parts)):
        if number not in parts:
            raise CorruptCheckpointError(
                f"{store.url} lacks part {number} of the records of shard {found.shard} of "
                f"{found.operator} in epoch {found.epoch}: they cannot be replayed"
            )
        head, content = _part(store, parts[number])
        found.checkpoint, found.shards = head["checkpoint"], head["shards"]
        found.watermark_us = head["watermark_us"]
        found.processing_time_us = head["processing_time_us"]
        found.state = head["state"]
        for what, place, stored in content:
            if what == "broadcast":
                found.broadcast.append((place, broadcast_form.read(stored)))
            else:
                batch = KeyedBatch(*stored)
                found.batches.append(batch._replace(records=form.read(batch.records)))
    return found


def _sealed(head: dict[str, Any], content: bytes) -> bytes:
    """Return the bytes of a part, with a checksum at the start."""
    line = json.dumps(head).encode()
    total = xxhash.xxh3_64_hexdigest(line + b"\n" + content)
    return b"%s %s\n%s" % (total.encode(), line, content)


def _part(store: Store, path: str) -> tuple[dict[str, Any], list[_Part]]:
    total, _, rest = store.read(path).partition(b" ")
    if total != xxhash.xxh3_64_hexdigest(rest).encode():
        raise CorruptCheckpointError(f"{store.at(path)} is damaged: its records cannot be replayed")
    line, _, content = rest.partition(b"\n")
    head = json.loads(line)
    if head["statekit recording"] != _VERSION:
        raise QueryError(f"{store.at(path)} was written by a later version: update statekit")
    return head, pickle.loads(content)  # noqa: S301 - whoever recorded it ran the same job


class KeptRecordings:
    """Removes the oldest epochs of a recorder above its limit. Used by the driver.

    Parameters:
        recorder: the recorder.

    Raises:
        StatekitError: its path cannot be opened.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._store = Store(recorder.path)
        self._limit_bytes = recorder.limit_bytes
        self._bytes: dict[int, int] | None = None

    def committed(self, epoch: int) -> None:
        """Remove the oldest epochs above the limit, after an epoch was committed. After the first
        call, only the files of that epoch are listed.

        Failures are logged, and the job continues.
        """
        try:
            if self._bytes is None:
                self._bytes = self._listed("")
            else:
                self._bytes |= self._listed(folder_of(epoch))
            while sum(self._bytes.values()) > self._limit_bytes and len(self._bytes) > 1:
                oldest = min(self._bytes)
                self._store.collect(self._store.tree(folder_of(oldest)))
                del self._bytes[oldest]
        except StorageError as error:
            _LOG.warning("old recordings are not removed: %s", error)

    def _listed(self, under: str) -> dict[int, int]:
        """Return the size of each epoch with files below a folder, in bytes."""
        found: dict[int, int] = {}
        for file in self._store.listed(under):
            if (epoch := epoch_of(file.path)) is not None:
                found[epoch] = found.get(epoch, 0) + file.size
        return found
