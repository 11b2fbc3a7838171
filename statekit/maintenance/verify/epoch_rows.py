"""Row checks of an epoch: read all rows, and compare them with the sums in the manifest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from statekit.backend.interface import StateSize, total_size
from statekit.checkpoint.job_file import EXPIRY, WAITING, OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.codec.schema_codec import generic_key_decoder
from statekit.errors import CorruptCheckpointError, StatekitError, StorageError
from statekit.maintenance.verify.findings import Finding, FindingKind, Verification, finding_kind
from statekit.maintenance.verify.row_checks import RowChecks, RowFault
from statekit.state.timers import DUE
from statekit.stored_types import key_schema
from statekit.timestamp import instant
from statekit.working_copy.unpacked_shard import ShardRows

Sizes = Mapping[str, StateSize]
"""The size of a shard, per state."""

_EXAMPLES = 3
_NONE = StateSize(0, 0)


def check_rows(
    repository: Repository,
    manifest: EpochManifest,
    operator: OperatorRecord,
    readable: Sequence[ShardState],
    verification: Verification,
) -> None:
    """Check the rows of an operator after one epoch, and record findings.

    Parameters:
        readable: its shards without damaged files.
        verification: gets the findings.
    """
    checks = RowChecks(operator, manifest.key_groups)
    verification.pickled |= {f"{operator.name}.{state}" for state in checks.pickled}
    of_operator = partial(Finding, epochs=(manifest.epoch,), operator=operator.name)
    path, note = epoch_path(manifest.epoch), verification.findings.append
    shard_rows = ShardRows(repository, operator.name, manifest)
    sizes_of: dict[tuple[int, int], Sizes] = {}
    for shard in readable:
        try:
            with shard_rows.opened(shard, checks.families) as backend:
                faults = checks.check(backend, shard.groups)
                verification.findings += _row_findings(faults, manifest.epoch, operator, shard)
        except (CorruptCheckpointError, StorageError) as error:
            note(of_operator(finding_kind(error, "file"), str(error), shard=shard.groups))
            continue
        sizes_of[shard.groups] = checks.sizes
        verification.rows += sum(size.rows for size in checks.sizes.values())
        for what in _late_to_wake(shard, checks):
            note(of_operator("wake", what, path, shard=shard.groups))
    epoch = manifest.operators[operator.name]
    if len(sizes_of) == len(epoch.shards):
        for groups, state, what in _counted_wrongly(epoch, operator, sizes_of):
            note(of_operator("count", what, path, shard=groups, state=state))


def _row_findings(
    faults: Iterable[RowFault], epoch: int, operator: OperatorRecord, shard: ShardState
) -> Iterator[Finding]:
    """Yield one finding for all rows of a state with the same fault."""
    counts: Counter[tuple[FindingKind, str]] = Counter()
    examples_of: dict[tuple[FindingKind, str], list[RowFault]] = {}
    for fault in faults:
        counts[fault.kind, fault.family] += 1
        examples = examples_of.setdefault((fault.kind, fault.family), [])
        if len(examples) < _EXAMPLES:
            examples.append(fault)
    for (kind, family), examples in examples_of.items():
        yield Finding(
            kind,
            f"{examples[0].what} ({_key_text(operator, examples[0])})",
            epochs=(epoch,),
            operator=operator.name,
            shard=shard.groups,
            state=family,
            rows=counts[kind, family],
            row_keys=tuple(fault.row_key.hex() for fault in examples),
        )


def _late_to_wake(shard: ShardState, checks: RowChecks) -> Iterator[str]:
    """Yield the clocks for which a shard would wake up too late for a due row."""
    for clock, due in checks.soonest.items():
        wake = shard.wake_us.get(clock)
        if wake is None or wake > due:
            wake_text = "never wakes" if wake is None else f"wakes at {_time(wake)}"
            yield f"the shard {wake_text} by {clock} time, and has something due at {_time(due)}"


def _counted_wrongly(
    epoch: OperatorEpoch, operator: OperatorRecord, sizes_of: Mapping[tuple[int, int], Sizes]
) -> Iterator[tuple[tuple[int, int] | None, str, str]]:
    """Yield the states whose size differs from the manifest.

    Yields the key groups of the shard, or None for all shards together, the state, and the
    difference.

    Parameters:
        sizes_of: the counted size of each shard.
    """
    for state in operator.holds:
        total = total_size(sizes.get(state, _NONE) for sizes in sizes_of.values())
        expected = StateSize(epoch.rows.get(state, 0), epoch.bytes.get(state, 0))
        if total != expected:
            yield None, state, _count_text(total, expected)
        for shard in epoch.shards:
            actual = sizes_of[shard.groups].get(state, _NONE)
            expected = StateSize(shard.rows.get(state, 0), shard.bytes.get(state, 0))
            if not shard.is_part and actual != expected:
                yield shard.groups, state, _count_text(actual, expected)


def _count_text(actual: StateSize, expected: StateSize) -> str:
    return (
        f"there are {actual.rows:,} rows of {actual.bytes:,} bytes, and the manifest has "
        f"{expected.rows:,} of {expected.bytes:,}"
    )


def _time(micros: int) -> str:
    return instant(micros).isoformat()


def _key_text(operator: OperatorRecord, fault: RowFault) -> str:
    """Return a row key as readable text: its key if there is one, otherwise its bytes."""
    start = {WAITING: 10, DUE: 11}.get(fault.family, 2)
    text = f"row key {fault.row_key.hex()}"
    if not operator.key or fault.family == EXPIRY:
        return text
    try:
        key = generic_key_decoder(key_schema(operator))(fault.row_key, start)[0]
    except StatekitError:
        return text
    return f"key {json.dumps(key)}, {text}"
