"""Reads of a checkpoint by others, who have its schemas and none of the code, compared with the
states of the functions: queries of each epoch, a replica that follows, and a change feed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from statekit.checkpoint.repository import Repository
from statekit.checkpoint.state_kinds import RowShape
from statekit.codec.schema_codec import json_key_decoder, json_value_decoder
from statekit.functions.process import Process
from statekit.job.plan import Operator, Plan
from statekit.query.changes.change import Change
from statekit.query.changes.feed import EpochChanges, feed
from statekit.query.replica.replica import Replica
from statekit.query.rows.reader import CheckpointReader
from statekit.query.rows.state_rows import hashable
from statekit.shown import shown
from statekit.state.base import StateSpec
from statekit.testing.drivers.driver import EpochContents
from statekit.testing.drivers.memory_directory import memory_directory
from statekit.testing.runs.comparison import is_same
from statekit.testing.runs.on_spark import read_values

_EPOCHS_MAX = 6
"""Number of epochs, the last ones, whose queries are compared."""

_Rows = dict[tuple[str, Any], Change]
"""The rows of a state as a feed gives them, by the text of the key and the place."""


def misread(job: Plan, repository: Repository, contents: Sequence[EpochContents]) -> str | None:
    """Return the first difference between reads of a checkpoint and the states of the functions;
    None if there is none.

    The reader replays the change files. So it also finds rows that a working copy has by mistake.

    Parameters:
        contents: the stored contents after each epoch.
    """
    first = max(0, len(contents) - _EPOCHS_MAX)
    for number in range(first, len(contents)):
        reader = CheckpointReader(repository, epoch=number, allow_pickle=True)
        for operator, spec in _read_states(job):
            values = read_values(reader, operator.name, spec.name)
            found = {key: _by_place(spec, value) for key, value in values.items()}
            if what := _differs(operator, spec, contents[number], found):
                return f"{what} in epoch {number}, as a reader sees it"
    for operator, spec in _read_states(job):
        if what := _misfed(repository, operator, spec, contents):
            return what
    return None


class FollowedReplica:
    """A replica that follows a job epoch by epoch.

    Parameters:
        job: the job.
        repository: its checkpoint.

    Attributes:
        misread: the first difference between its reads and the states of the functions; None if
            there is none.
    """

    def __init__(self, job: Plan, repository: Repository) -> None:
        self._job = job
        self._repository = repository
        self._directory = memory_directory("replica")
        self._replica: Replica | None = None
        self.misread: str | None = None

    def follow(self, contents: EpochContents) -> None:
        """Read the last epoch, and compare it.

        Parameters:
            contents: the stored contents after this epoch.
        """
        if self._replica is None:
            self._replica = Replica(
                self._repository, directory=self._directory.name, follow=False, allow_pickle=True
            )
        else:
            self._replica.refresh()
        view = self._replica.at()
        for operator, spec in _read_states(self._job):
            items = view.state(operator.name, spec.name).items()
            found = {repr(key): _by_place(spec, value) for key, value in items}
            what = _differs(operator, spec, contents, found)
            if what is not None and self.misread is None:
                self.misread = f"{what} in epoch {view.epoch}, as a replica sees it"

    def close(self) -> None:
        """Close the replica, and remove its files."""
        if self._replica is not None:
            self._replica.close()
        self._directory.cleanup()


def _read_states(job: Plan) -> Iterator[tuple[Operator, StateSpec]]:
    """Yield the states that are compared, with their operators."""
    for operator in job.operators:
        for spec in operator.declared.states:
            if not spec.kind.is_local and spec.aggregate is None:  # what is stored is no result
                yield operator, spec


def _misfed(
    repository: Repository, operator: Operator, spec: StateSpec, contents: Sequence[EpochContents]
) -> str | None:
    """Return the first value that differs in a table to which the changes of a state are applied,
    as stored changes and as changes that are resolved into rows; None if there is none.
    """
    with memory_directory("feed") as directory:
        for is_resolved in (False, True):
            table: _Rows = {}
            with feed(
                repository,
                operator.name,
                spec.name,
                before=is_resolved,
                allow_pickle=True,
                directory=Path(directory),
            ) as changes:
                for epoch in changes:
                    if what := _apply(table, epoch, is_resolved=is_resolved):
                        return f"state {spec.name!r} of {operator.name}: {what}"
                    found = _fed(spec, table, None if is_resolved else epoch)
                    held = contents[epoch.epoch]
                    if what := _differs(operator, spec, held, found):
                        return f"{what} in epoch {epoch.epoch}, as a feed has it"
    return None


def _apply(table: _Rows, epoch: EpochChanges, *, is_resolved: bool) -> str | None:
    """Apply the changes of an epoch to a table. Return the first row whose value is not the
    previous value in its change; None if there is none.
    """
    if epoch.kind == "snapshot":
        table.clear()
    for change in epoch:
        if change.op == "clear":
            gone = [row for row in table if change.key is None or row[0] == repr(change.key)]
            for row in gone:
                del table[row]
            continue
        row = repr(change.key), change.place
        before = table[row].value if row in table else None
        if is_resolved and not is_same(before, change.before):
            return (
                f"epoch {epoch.epoch} changes {row} from {shown(change.before)}, and not "
                f"{shown(before)}"
            )
        table.pop(row, None)
        if change.op == "upsert":
            table[row] = change
    return None


def _fed(spec: StateSpec, table: _Rows, epoch: EpochChanges | None) -> dict[str, Any]:
    """Return the values of a table by the texts of their keys.

    Parameters:
        epoch: the epoch by whose clocks rows expire; None if expired rows were deleted.
    """
    now = None
    if epoch is not None and spec.ttl is not None:
        now = epoch.processing_time if spec.ttl.clock == "processing" else epoch.watermark
    rows = [
        (key, place, change.value)
        for (key, place), change in table.items()
        if change.expires is None or now is None or change.expires > now
    ]
    found: dict[str, Any] = {}
    for key, some in groupby(sorted(rows, key=lambda row: (row[0], repr(row[1]))), itemgetter(0)):
        own = [(place, value) for _, place, value in some]
        match spec.kind.shape:
            case RowShape.VALUE:
                found[key] = own[0][1]
            case RowShape.ELEMENTS:
                found[key] = [value for _, value in own]
            case RowShape.ENTRIES:
                found[key] = own
    return found


def _differs(
    operator: Operator, spec: StateSpec, contents: EpochContents, found: Mapping[str, Any]
) -> str | None:
    """Return the first key whose value was read differently than the function has it; None if there
    is none.

    Parameters:
        found: the values that were read, by the texts of the keys.
    """
    held = _shown(operator.declared, spec, contents.states[operator.name, spec.name])
    default = None if spec.default is None else _shows(spec)(spec.default)
    for key in dict.fromkeys([*held, *found]):
        if key not in found and held[key] == default:
            continue
        if not is_same(held.get(key), found.get(key)):
            return (
                f"state {spec.name!r} of {operator.name} at the key {key}: {shown(held.get(key))}, "
                f"and {shown(found.get(key))}"
            )
    return None


def _shown(
    process: Process[Any, Any, Any], spec: StateSpec, values: Mapping[Any, Any]
) -> dict[str, Any]:
    """Return the values of keys as a reader shows them, by the texts of its keys."""
    of, key_shown = _shows(spec), json_key_decoder(process.key_codec.schema)
    found: dict[str, Any] = {}
    for key, value in values.items():
        match spec.kind.shape:
            case RowShape.VALUE:
                made = of(value)
            case RowShape.ELEMENTS:
                made = list(map(of, value))
            case RowShape.ENTRIES:
                assert spec.key_codec is not None
                place_shown = json_key_decoder(spec.key_codec.schema)
                encode = spec.key_codec.encode
                made = _in_order((place_shown(encode(own))[0], of(v)) for own, v in value.items())
        found[repr(hashable(key_shown(process.key_codec.encode(key))[0]))] = made
    return found


def _by_place(spec: StateSpec, read: Any) -> Any:
    """Return a value that was read; of a map, pairs of places and values."""
    if spec.kind.shape is not RowShape.ENTRIES:
        return read
    return _in_order(read.items() if isinstance(read, dict) else read)


def _in_order(entries: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the entries of a map in the order of the texts of their places."""
    pairs = [(hashable(place), value) for place, value in entries]
    return sorted(pairs, key=lambda pair: repr(pair[0]))


def _shows(spec: StateSpec) -> Callable[[Any], Any]:
    """Return a function that returns a value of a state as a reader shows it."""
    shown = json_value_decoder(spec.codec.schema, spec.codec.name, allow_pickle=True)
    return lambda value: shown(spec.codec.encode(value))
