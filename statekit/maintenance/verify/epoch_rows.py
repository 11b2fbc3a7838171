"""Read all rows of an epoch and compare them with the sums in its manifest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from statekit.backend.interface import StateSize
from statekit.checkpoint.job_file import EXPIRY, WAITING, JobFile, OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.codec.schema_codec import generic_key_decoder
from statekit.errors import CorruptCheckpointError, StatekitError, StorageError
from statekit.maintenance.verify.findings import Finding, FindingKind, Verification, kind_of
from statekit.maintenance.verify.manifest_checks import Damage
from statekit.maintenance.verify.row_checks import RowChecks, RowFault
from statekit.reader import key_schema
from statekit.state.timers import DUE
from statekit.timestamp import instant
from statekit.working_copy.unpacked_shard import ShardRows

Sizes = Mapping[str, StateSize]
"""The size of a shard, per state."""

_EXAMPLES = 3
_NONE = StateSize(0, 0)


class GivenUpError(Exception):
    """The epoch whose rows are checked was collected meanwhile."""


class RowVerification:
    """Checks rows, and records findings.

    Parameters:
        repository: the checkpoint.
        found: the verification that gets the findings.
        damage: which shards cannot be read.
    """

    def __init__(self, repository: Repository, verification: Verification, damage: Damage) -> None:
        self._repository = repository
        self._verification = verification
        self._damage = damage

    def at_epoch(self, manifest: EpochManifest, job: JobFile) -> None:
        """Check the rows of one epoch.

        Raises:
            GivenUpError: it was collected meanwhile.
        """
        for operator in job.operators:
            if operator.name in manifest.operators:
                self._at_operator(manifest, operator)

    def _at_operator(self, manifest: EpochManifest, operator: OperatorRecord) -> None:
        checks = RowChecks(operator, manifest.key_groups)
        self._verification.pickled |= {f"{operator.name}.{state}" for state in checks.pickled}
        epoch = manifest.operators[operator.name]
        sizes_of: dict[tuple[int, int], Sizes] = {}
        shard_rows = ShardRows(self._repository, operator.name, manifest)
        for shard in epoch.shards:
            if self._damage.of_shard(manifest.epoch, operator.name, shard.groups):
                continue
            try:
                with shard_rows.opened(shard, checks.families) as backend:
                    faults = checks.check(backend, shard.groups)
                    self._note_rows(faults, manifest.epoch, operator, shard)
            except (CorruptCheckpointError, StorageError) as error:
                if manifest.epoch < self._repository.first_kept():
                    raise GivenUpError from error
                what, kind = str(error), kind_of(error, "file")
                self._note(kind, what, manifest.epoch, operator, shard)
                continue
            sizes_of[shard.groups] = checks.sizes
            self._verification.rows += sum(size.rows for size in checks.sizes.values())
            for what in late_to_wake(shard, checks):
                self._note("wake", what, manifest.epoch, operator, shard)
        if len(sizes_of) == len(epoch.shards):
            for shard_or_all, state, what in counted_wrongly(manifest, operator, sizes_of):
                self._note("count", what, manifest.epoch, operator, shard_or_all, state=state)

    def _note_rows(
        self, faults: Iterable[RowFault], epoch: int, operator: OperatorRecord, shard: ShardState
    ) -> None:
        """Record faulty rows: one finding for all rows of a state with the same fault."""
        counts: Counter[tuple[FindingKind, str]] = Counter()
        alike: dict[tuple[FindingKind, str], list[RowFault]] = {}
        for fault in faults:
            counts[fault.kind, fault.family] += 1
            examples = alike.setdefault((fault.kind, fault.family), [])
            if len(examples) < _EXAMPLES:
                examples.append(fault)
        for (kind, family), examples in alike.items():
            first = examples[0]
            self._verification.findings.append(
                Finding(
                    kind,
                    f"{first.what} ({_key_text(operator, first)})",
                    epochs=(epoch,),
                    operator=operator.name,
                    shard=shard.groups,
                    state=family,
                    rows=counts[kind, family],
                    row_keys=tuple(fault.row_key.hex() for fault in examples),
                )
            )

    def _note(
        self,
        kind: FindingKind,
        what: str,
        epoch: int,
        operator: OperatorRecord,
        shard: ShardState | None,
        *,
        state: str | None = None,
    ) -> None:
        path = epoch_path(epoch) if kind in ("count", "wake") else None
        groups = None if shard is None else shard.groups
        finding = Finding(
            kind, what, path, (epoch,), operator=operator.name, shard=groups, state=state
        )
        self._verification.findings.append(finding)


def late_to_wake(shard: ShardState, checks: RowChecks) -> Iterator[str]:
    """Yield the clocks whose wake time in a shard is after something that is due."""
    for clock, due in checks.soonest.items():
        wake = shard.wake_us.get(clock)
        if wake is None or wake > due:
            wake_text = "never wakes" if wake is None else f"wakes at {_time(wake)}"
            yield f"the shard {wake_text} by {clock} time, and has something due at {_time(due)}"


def counted_wrongly(
    manifest: EpochManifest, operator: OperatorRecord, sizes_of: Mapping[tuple[int, int], Sizes]
) -> Iterator[tuple[ShardState | None, str, str]]:
    """Yield the states whose size differs from the manifest.

    Yields the shard, or None if only the total is known, the state, and the difference.

    Parameters:
        sizes_of: the counted size of each shard.
    """
    epoch = manifest.operators[operator.name]
    for state in operator.holds:
        total = [
            sum(sizes.get(state, _NONE)[place] for sizes in sizes_of.values()) for place in (0, 1)
        ]
        expected_total = [epoch.rows.get(state, 0), epoch.bytes.get(state, 0)]
        if total != expected_total:
            yield None, state, _count_text(total, expected_total)
        for shard in epoch.shards:
            actual = list(sizes_of[shard.groups].get(state, _NONE))
            expected = [shard.rows.get(state, 0), shard.bytes.get(state, 0)]
            if not shard.is_part and actual != expected:
                yield shard, state, _count_text(actual, expected)


def _count_text(actual: Sequence[int], expected: Sequence[int]) -> str:
    return (
        f"there are {actual[0]:,} rows of {actual[1]:,} bytes, and the manifest has "
        f"{expected[0]:,} of {expected[1]:,}"
    )


def _time(micros: int) -> str:
    return instant(micros).isoformat()


def _key_text(operator: OperatorRecord, fault: RowFault) -> str:
    """Return a row key for people: its key if it has one, else its bytes."""
    start = {WAITING: 10, DUE: 11}.get(fault.family, 2)
    text = f"row key {fault.row_key.hex()}"
    if not operator.key or fault.family == EXPIRY:
        return text
    try:
        key = generic_key_decoder(key_schema(operator))(fault.row_key, start)[0]
    except StatekitError:
        return text
    return f"key {json.dumps(key)}, {text}"
