"""`statekit inspect`: show what a checkpoint contains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from statekit.backend.interface import StateSize
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.gc.readers import Readers
from statekit.checkpoint.job_file import TIMERS, WAITING
from statekit.checkpoint.manifest import ShardState
from statekit.checkpoint.retention import Retention
from statekit.cli.readers import print_readers, readers_as_data
from statekit.cli.rollback import rolled_back_text
from statekit.cli.tables import add_rows_of_shards, empty_table, out, range_text, say, size_cells
from statekit.reader import CheckpointReader, key_text, state_text, time_text
from statekit.timestamp import instant
from statekit.working_copy.base_options import replay_seconds

INSPECTED = Retention(readers="5000 weeks")
"""The retention that the cost of readers is compared with: a checkpoint does not contain its own.
"""


@dataclass(frozen=True)
class Counted:
    """The size of an operator's state.

    Attributes:
        sizes: rows and bytes per state, and of timers.
        shards: rows of keys per shard; None for one that was not counted.
        groups: the same per key group; None if no state was read.
    """

    sizes: dict[str, StateSize]
    shards: list[int | None]
    groups: Counter[int] | None


def counted(reader: CheckpointReader, names: Sequence[str], *, fast: bool) -> dict[str, Counted]:
    """Count the rows of operators: by reading them, or from the numbers in the manifest.

    Parameters:
        names: of the operators.
    """
    count = _from_manifest if fast else _read
    return {name: count(reader, name) for name in names}


def _read(reader: CheckpointReader, operator: str) -> Counted:
    with scratch_directory("inspect") as directory:
        sizes, groups = reader.sizes(operator, directory)
    shards: list[int | None] = [
        sum(groups[group] for group in range(shard.first_group, shard.last_group + 1))
        for shard in reader.manifest.operators[operator].shards
    ]
    return Counted(sizes, shards, groups)


def _from_manifest(reader: CheckpointReader, operator: str) -> Counted:
    record, epoch = reader.operator(operator), reader.manifest.operators[operator]
    rows, size = epoch.rows, epoch.bytes
    sizes = {name: StateSize(rows.get(name, 0), size.get(name, 0)) for name in record.holds}
    # What shards that are parts began with was never counted one by one.
    shards = [
        None if shard.is_part else sum(shard.rows.get(name, 0) for name in record.holds_by_key)
        for shard in epoch.shards
    ]
    return Counted(sizes, shards, None)


def print_checkpoint(
    reader: CheckpointReader, operators: Mapping[str, Counted], readers: Readers
) -> None:
    """Print the job and its readers, then a table of states and one of shards per operator."""
    manifest, epochs = reader.manifest, reader.epochs
    out.print(f"[bold]job {reader.job.name}[/]  {reader.repository.url}", soft_wrap=True)
    out.print(
        f"epoch {manifest.epoch} of {epochs[0]}–{epochs[-1]} ({len(epochs)} kept), committed "
        f"{instant(manifest.committed_at_us):%Y-%m-%d %H:%M:%S} UTC, parallelism "
        f"{manifest.parallelism}, {manifest.key_groups} key groups"
    )
    if reader.abandoned:
        say(rolled_back_text(reader.abandoned))
    print_readers(readers, otherwise=f"the last {INSPECTED.epochs} epochs")
    for name, counts in operators.items():
        out.print()
        _print_states(reader, name, counts.sizes)
        if reader.operator(name).holds_by_key:
            _print_skew(reader, name, counts)
        _print_restores(manifest.operators[name].shards)


def _print_states(reader: CheckpointReader, operator: str, sizes: dict[str, StateSize]) -> None:
    record = reader.operator(operator)
    by = f" by {key_text(record)}" if record.key else ""
    title = f"operator {operator}{by} ← {', '.join(record.inputs)}"
    if record.broadcasts:
        title += f"; broadcast: {', '.join(record.broadcasts)}"
    table = empty_table(("rows", "bytes"), texts=("state", "type"), title=title)
    for state in record.states:
        table.add_row(state.name, Text(state_text(state)), *size_cells(sizes[state.name]))
    for name, what in ((TIMERS, "timers"), (WAITING, "buffered records")):
        if name in sizes:
            table.add_row(name, what, *size_cells(sizes[name]))
    if table.row_count:
        out.print(table)
    else:
        out.print(f"{title}: no state", style="table.title", markup=False)
    clocks = time_text(record, reader.manifest.operators[operator])
    if clocks:
        out.print(clocks)


def _print_skew(reader: CheckpointReader, operator: str, counts: Counted) -> None:
    """Print how evenly rows of keys are distributed over shards, and over key groups if they were
    read.
    """
    headings = ("shard", "key groups", "rows", "of mean", "fullest group")
    table = empty_table(headings, title=f"skew of {operator}")
    shards = reader.manifest.operators[operator].shards
    counted_rows = [rows for rows in counts.shards if rows is not None]
    total = sum(counted_rows) if len(counted_rows) == len(shards) else 0

    def cells_of(number: int) -> Sequence[str]:
        rows, (first, last) = counts.shards[number], shards[number].groups
        fullest = "–"
        if counts.groups is not None and rows:
            group = max(range(first, last + 1), key=counts.groups.__getitem__)
            fullest = f"{group}: {counts.groups[group]:,}"
        return (
            str(number),
            range_text((first, last)),
            "–" if rows is None else f"{rows:,}",
            f"{rows * len(shards) / total:.2f}" if total and rows is not None else "–",
            fullest,
        )

    add_rows_of_shards(table, [rows or 0 for rows in counts.shards], cells_of)
    out.print(table)
    if len(counted_rows) < len(shards):
        out.print("– is not known without counting: leave out --fast to count")


def _print_restores(shards: Sequence[ShardState]) -> None:
    """Print the size of a restore; nothing for an operator without state."""
    restores = _restores_as_data(shards)
    if not (restores["based"] or restores["change_files"]):
        return
    out.print(
        f"restore: {restores['based']} of {restores['shards']} shards from a base; change files to "
        f"apply: {restores['change_files']:,}, at most {restores['longest']:,} in a shard, about "
        f"{restores['seconds']:.2f} s in the slowest; {restores['uploaded']:,} bytes uploaded for "
        f"{restores['changed']:,} changed"
    )


def _restores_as_data(shards: Sequence[ShardState]) -> dict[str, Any]:
    """Return the size of restores of an operator's shards, according to the manifest."""
    chains = [shard.chain for shard in shards]
    return {
        "shards": len(shards),
        "based": sum(shard.base is not None for shard in shards),
        "change_files": sum(chain.files for chain in chains),
        "longest": max((chain.files for chain in chains), default=0),
        "seconds": round(max(map(replay_seconds, chains), default=0.0), 3),
        "changed": sum(chain.changed for chain in chains),
        "uploaded": sum(chain.uploaded for chain in chains),
    }


def as_data(
    reader: CheckpointReader, operators: Mapping[str, Counted], readers: Readers
) -> dict[str, object]:
    """Return the contents of a checkpoint as JSON-able data."""
    return {
        "job": reader.job.name,
        "checkpoint": reader.repository.url,
        "epoch": reader.manifest.epoch,
        "epochs": reader.epochs,
        "rolled_back": reader.abandoned,
        "parallelism": reader.manifest.parallelism,
        "key_groups": reader.job.key_groups,
        **readers_as_data(readers),
        "operators": [
            {
                "name": operator.name,
                "key": key_text(operator),
                "states": [
                    {
                        "name": state.name,
                        "type": state_text(state),
                        **operators[operator.name].sizes[state.name]._asdict(),
                    }
                    for state in operator.states
                ],
                "timers": operators[operator.name].sizes[TIMERS].rows if operator.timers else None,
                "waiting": None
                if operator.ordered is None
                else operators[operator.name].sizes[WAITING].rows,
                "event_time": _time_as_data(reader, operator.name),
                "restore": _restores_as_data(reader.manifest.operators[operator.name].shards),
            }
            for operator in map(reader.operator, operators)
        ],
    }


def _time_as_data(reader: CheckpointReader, operator: str) -> dict[str, object] | None:
    record, epoch = reader.operator(operator), reader.manifest.operators[operator]
    if record.event_time is None or epoch.watermark_us is None:
        return None
    return {
        "field": record.event_time,
        "lateness_us": record.lateness_us,
        "watermark": instant(epoch.watermark_us).isoformat(),
        "late": epoch.late_so_far,
    }
