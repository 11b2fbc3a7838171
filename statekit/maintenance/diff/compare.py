"""Comparison of the states of two jobs: their schemas, and every row.

A row is a value, an accumulator, a list element, a map entry, a timer or a buffered record. Two
rows correspond if they have the same key and the same map key, list index, timer, or time and
record. The write time of a row is not compared. An expired row counts until it is removed.

Both sides are unpacked to the local disk, one shard at a time, and read side by side in the order
of their keys. If key groups or the types of keys differ, rows are sorted once more without them. If
types of values differ, decoded values are compared. Shards of the same attempt are equal and are
not read at all.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from statekit.backend.interface import Backend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.repository import group_bounds
from statekit.checkpoint.shard_layout import standing
from statekit.keygroup import group_ranges, pack_group
from statekit.maintenance.diff.rows import FamilyRows, Groups, InAnyKeyGroups, Row, unpacked
from statekit.maintenance.row_keys import KeyedRows
from statekit.maintenance.savepoint.format import Savepoint
from statekit.query.changes.net_changes import joined
from statekit.query.rows.reader import CheckpointReader
from statekit.stored_types import key_text

Change = Literal["added", "removed", "changed"]


class ShardVersion(NamedTuple):
    """The version of some key groups' contents, known without reading them.

    Parameters:
        name: equal for equal rows only.
        rows: number per state; None if they were not counted.
    """

    name: str
    rows: dict[str, int] | None


class EpochSource:
    """The state of a checkpoint after an epoch, as a source of a comparison.

    Parameters:
        url: a directory or object store URL.
        epoch: None for the last one.

    Raises:
        QueryError: nothing is committed yet, or there is no such epoch.
    """

    def __init__(self, url: str | Path, epoch: int | None = None) -> None:
        self._reader = CheckpointReader(url, epoch=epoch)
        self.job = self._reader.job
        self.title = f"{url}@{self._reader.manifest.epoch}"

    def pieces(self, operator: str) -> Sequence[Groups]:
        """Return all key groups, divided into ranges that are unpacked together, in order."""
        return self.shards(operator)

    def shards(self, operator: str) -> Sequence[Groups]:
        """Return the key groups of each shard. Operator state is stored with the first key
        group.
        """
        return [shard.groups for shard in self._reader.manifest.operators[operator].shards]

    def held(self, operator: str, groups: Groups) -> ShardVersion | None:
        """Return the version of these key groups; None if it is unknown without reading them."""
        shard = standing(self._reader.manifest, operator, *groups)
        # Attempts and files have names that are never given twice, in whichever checkpoint.
        version = " ".join((shard.attempt or "", *(ref.path for ref in shard.redistributed)))
        return ShardVersion(version, None if shard.is_part else shard.rows)

    @contextlib.contextmanager
    def opened(self, operator: str, groups: Groups) -> Iterator[Backend]:
        """Open the rows of these key groups."""
        with (
            scratch_directory("diff") as directory,
            contextlib.closing(self._reader.unpack(operator, directory, groups)) as backend,
        ):
            yield backend


class SavepointSource:
    """The state of a savepoint, as a source of a comparison. Has the methods of `EpochSource`.

    Parameters:
        url: its directory, or its URL in an object store.

    Raises:
        RestoreError: there is none.
    """

    def __init__(self, url: str | Path) -> None:
        self._savepoint = Savepoint.at(url)
        self.job = self._savepoint.file.job
        self.title = str(url)

    def pieces(self, operator: str) -> Sequence[Groups]:
        return [(0, self.job.key_groups - 1)]  # its files are not cut by key group

    def shards(self, operator: str) -> Sequence[Groups]:
        return group_ranges(self._savepoint.file.parallelism, self.job.key_groups)

    def held(self, operator: str, groups: Groups) -> ShardVersion | None:
        return None

    def opened(self, operator: str, groups: Groups) -> AbstractContextManager[Backend]:
        record = self.job.operator(operator)
        assert record is not None, "asked for operators of its job only"
        return unpacked(record.holds, self._rows(record, groups))

    def _rows(self, record: OperatorRecord, groups: Groups) -> Iterator[tuple[str, bytes, bytes]]:
        keyed, (start, end) = KeyedRows(record, self.job.key_groups), group_bounds(*groups)
        for family, parts, row in self._savepoint.rows(record):
            row_key = keyed.row_key(parts)
            if start <= row_key < end:
                yield family, row_key, row
        for family, shards in self._savepoint.local_rows(record).items():
            for (first, _), rows in zip(self.shards(record.name), shards, strict=True):
                if groups[0] <= first <= groups[1]:
                    yield from ((family, pack_group(first) + subkey, row) for subkey, row in rows)


StateSource = EpochSource | SavepointSource
"""A state that can be compared."""


@dataclass(frozen=True)
class RowDifference:
    """A row that differs.

    Attributes:
        change: "added", "removed" or "changed".
        key: as JSON.
        place: the map key, index, timer or time, if a key has several rows.
        old, new: the content in A and in B.
    """

    change: Change
    key: Any
    place: Any = None
    old: Any = None
    new: Any = None


@dataclass
class StateDifference:
    """The differences of one state, of the timers, or of the buffered records of an operator.

    Attributes:
        type_a, type_b: the declared types; None if a side has none.
        rows_a, rows_b: number of rows.
        added, removed, changed: number of rows that are only in B, only in A, or different.
        examples: the first different rows, as many as requested.
    """

    operator: str
    state: str
    type_a: str | None
    type_b: str | None
    rows_a: int = 0
    rows_b: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0
    examples: list[RowDifference] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        return self.type_a == self.type_b and not (self.added or self.removed or self.changed)


@dataclass
class Difference:
    """The differences between two states of a job.

    Attributes:
        a, b: their titles.
        operators_a, operators_b: the operators, with their keys.
        states: of all operators of both.
        shards_read, shards_skipped: number of shards that were compared, and that did not have to
            be.
    """

    a: str
    b: str
    operators_a: dict[str, str]
    operators_b: dict[str, str]
    states: list[StateDifference] = field(default_factory=list)
    shards_read: int = 0
    shards_skipped: int = 0

    @property
    def is_same(self) -> bool:
        same = all(state.is_same for state in self.states)
        return same and self.operators_a == self.operators_b


def compare(
    a: StateSource, b: StateSource, *, examples: int = 0, allow_pickle: bool = False
) -> Difference:
    """Compare the states of two jobs.

    Parameters:
        examples: number of different rows to return per state.
        allow_pickle: unpickle pickled values, which can run any code. Otherwise they are compared
            as bytes, and shown as hex.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
        StorageError: the local disk is full.
    """
    difference = Difference(
        a.title,
        b.title,
        {operator.name: key_text(operator) for operator in a.job.operators},
        {operator.name: key_text(operator) for operator in b.job.operators},
    )
    for name in dict.fromkeys([*difference.operators_a, *difference.operators_b]):
        sides = _Side(a, name, allow_pickle), _Side(b, name, allow_pickle)
        _OperatorComparison(name, *sides, examples).run(difference)
    return difference


_Pieces = tuple[Groups | None, Groups | None]
"""Key groups of A and of B; None if only the other side is read."""


class _Side:
    """An operator on one side. It has no rows if that side has no operator of this name."""

    def __init__(self, source: StateSource, name: str, allow_pickle: bool) -> None:
        record = source.job.operator(name)
        self.source = source
        self.name = name
        self.key = None if record is None else [part.type for part in record.key]
        self.pieces = [] if record is None else source.pieces(name)
        self.families = (
            {}
            if record is None
            else {
                state: FamilyRows(record, state, allow_pickle=allow_pickle)
                for state in record.holds
            }
        )

    def rows(
        self, groups: Groups | None, closing: contextlib.ExitStack
    ) -> Callable[[str], Iterator[Row]]:
        """Return a function that reads the rows of a family."""
        if groups is None:
            return lambda name: iter(())
        backend = closing.enter_context(self.source.opened(self.name, groups))
        families = self.families
        return lambda name: families[name].rows(backend, groups) if name in families else iter(())


class _OperatorComparison:
    """An operator on both sides, or on one side if the other has none of this name."""

    def __init__(self, name: str, a: _Side, b: _Side, examples: int) -> None:
        self._name = name
        self._a, self._b = a, b
        self._examples = examples
        self._families = {
            family: (a.families.get(family), b.families.get(family))
            for family in dict.fromkeys([*a.families, *b.families])
        }
        self._states = {
            family: StateDifference(
                name, family, of_a.type if of_a else None, of_b.type if of_b else None
            )
            for family, (of_a, of_b) in self._families.items()
        }
        # Whether a key has the same bytes, and is in the same key group, on both sides.
        self._are_aligned = a.key == b.key and a.source.job.key_groups == b.source.job.key_groups
        self._are_alike = self._are_aligned and all(
            of_a and of_b and of_a.means_the_same_as(of_b) for of_a, of_b in self._families.values()
        )

    def run(self, difference: Difference) -> None:
        """Compare the operator, and add its differences."""
        difference.states += self._states.values()
        for pieces in self._pieces():
            equal_rows = self._known(pieces)
            if equal_rows is None:
                difference.shards_read += 1
                self._read(pieces)
                continue
            difference.shards_skipped += 1
            for family, state in self._states.items():
                state.rows_a += equal_rows.get(family, 0)
                state.rows_b += equal_rows.get(family, 0)

    # -------------------------------------------------------------------------- what to read

    def _pieces(self) -> Sequence[_Pieces]:
        """Return key groups of both sides that can be read side by side."""
        of_a, of_b = self._a.pieces, self._b.pieces
        if not of_a or not of_b:
            return [*((groups, None) for groups in of_a), *((None, groups) for groups in of_b)]
        if not self._are_aligned:
            return [((of_a[0][0], of_a[-1][1]), (of_b[0][0], of_b[-1][1]))]
        # Of two parallelisms, the later one knows its shards under the names that it gave them. If
        # nothing is known, the coarser one: a side without shards is read once per piece.
        return [(groups, groups) for groups in max((of_a, of_b), key=self._unread_pieces)]

    def _unread_pieces(self, pieces: Sequence[Groups]) -> tuple[int, int]:
        """Return the number of pieces that need not be read, and the negative total number. Greater
        is better.
        """
        return sum(self._known((groups, groups)) is not None for groups in pieces), -len(pieces)

    def _known(self, pieces: _Pieces) -> dict[str, int] | None:
        """Return the rows per state if both sides are known to be equal; None if they must be
        read.
        """
        groups, of_b = pieces
        if not self._are_alike or groups is None or groups != of_b:
            return None
        a, b = (side.source.held(self._name, groups) for side in (self._a, self._b))
        if a is None or b is None or a.name != b.name:
            return None
        return b.rows if a.rows is None else a.rows  # read, if neither was counted

    # ------------------------------------------------------------------------------- reading

    def _read(self, pieces: _Pieces) -> None:
        with contextlib.ExitStack() as closing:
            rows_of_a = self._a.rows(pieces[0], closing)
            rows_of_b = self._b.rows(pieces[1], closing)
            for name in self._families:
                self._compare(name, rows_of_a(name), rows_of_b(name))

    def _compare(self, name: str, of_a: Iterator[Row], of_b: Iterator[Row]) -> None:
        a, b = self._families[name]
        family = a or b
        assert family is not None, "one of them has it"
        # Whether the rows have one order on both sides, if both have them.
        if a is None or b is None or (self._are_aligned and a.identifies_like(b)):
            self._count(name, of_a, of_b, family)
            return
        order = InAnyKeyGroups(a, b)
        sorted_a = order.sorted_rows(a, of_a, self._a.source.shards(self._name))
        sorted_b = order.sorted_rows(b, of_b, self._b.source.shards(self._name))
        with contextlib.closing(sorted_a), contextlib.closing(sorted_b):
            self._count(name, sorted_a, sorted_b, order)

    def _count(
        self,
        name: str,
        of_a: Iterator[Row],
        of_b: Iterator[Row],
        order: FamilyRows | InAnyKeyGroups,
    ) -> None:
        """Count the differing rows of a family. Both sides have the same order."""
        state, (a, b) = self._states[name], self._families[name]
        is_same = _sameness(a, b)
        for row_key, old, new in joined(of_a, of_b):
            state.rows_a += old is not None
            state.rows_b += new is not None
            if old is None:
                change: Change = "added"
                state.added += 1
            elif new is None:
                change = "removed"
                state.removed += 1
            elif not is_same(old, new):
                change = "changed"
                state.changed += 1
            else:
                continue
            if len(state.examples) < self._examples:
                was = None if old is None or a is None else a.value(old)
                now = None if new is None or b is None else b.value(new)
                key, place = order.identity(row_key)
                state.examples.append(RowDifference(change, key, place, was, now))


def _sameness(a: FamilyRows | None, b: FamilyRows | None) -> Callable[[bytes, bytes], bool]:
    """Return a function that compares the contents of a row in A and in B."""
    if a is None or b is None:
        return lambda old, new: False
    if not a.means_the_same_as(b):
        return lambda old, new: bool(a.value(old) == b.value(new))  # 1 is 1.0 in wider types

    def text(family: FamilyRows, content: bytes) -> str:
        return json.dumps(family.value(content), sort_keys=True)

    # Bytes may differ in the order of a dict.
    return lambda old, new: old == new or text(a, old) == text(b, new)
