"""`statekit inspect`: show the contents of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from statekit.backend.interface import StateSize
from statekit.checkpoint.gc.readers import Readers, readers_of
from statekit.checkpoint.job_file import TIMERS, WAITING
from statekit.checkpoint.last_failure import LastFailure, last_failure
from statekit.checkpoint.manifest import EpochManifest, Placed, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import Retention
from statekit.cli.arguments import AsJson, Checkpoint, Epoch
from statekit.cli.readers import print_readers, readers_as_data
from statekit.cli.rollback import rolled_back_text
from statekit.cli.savepoint import inspect_savepoint
from statekit.cli.tables import (
    count_text,
    empty_table,
    out,
    print_json,
    print_shards,
    print_title,
    range_text,
    say,
    size_cells,
)
from statekit.codec.json_form import instant_text
from statekit.errors import QueryError
from statekit.maintenance.sizes import OperatorSizes, counted_sizes, stored_sizes
from statekit.query.rows.reader import CheckpointReader
from statekit.stored_types import held_back_as_data, key_text, state_text, time_text
from statekit.timestamp import instant
from statekit.working_copy.base_options import replay_seconds

INSPECTED = Retention(readers="5000 weeks")
"""The retention that the cost of readers is compared with: a checkpoint does not contain its own.
"""


def inspect(
    checkpoint: Checkpoint,
    epoch: Epoch = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Trust the manifest's counts; read no state.")
    ] = False,
    operator: Annotated[str | None, typer.Option(help="Show only this operator.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the contents of a checkpoint: job, operators, states with types and sizes, epochs, skew.

    For a savepoint: the job, and states with types, sizes and files.
    """
    if Repository(checkpoint, create=False).is_savepoint:
        if epoch is not None:
            raise typer.BadParameter("a savepoint is of one epoch: leave --epoch out")
        if operator is not None:
            raise typer.BadParameter("--operator is for checkpoints: leave it out")
        inspect_savepoint(checkpoint, as_json=as_json)
        return
    reader = _reader(checkpoint, epoch, as_json=as_json)
    names = [record.name for record in reader.job.operators]
    count = stored_sizes if fast else counted_sizes
    counts = {name: count(reader, name) for name in (names if operator is None else [operator])}
    readers = readers_of(reader.repository, INSPECTED, measured=not fast)
    if as_json:
        print_json(_as_data(reader, counts, readers))
    else:
        print_checkpoint(reader, counts, readers)


def _reader(checkpoint: str, epoch: int | None, *, as_json: bool) -> CheckpointReader:
    """Open a checkpoint.

    If it has no epoch because its job has failed before the first one, say so, and end the command.
    """
    try:
        return CheckpointReader(checkpoint, epoch=epoch)
    except QueryError:
        repository = Repository(checkpoint, create=False)
        failure = last_failure(repository)
        if epoch is not None or failure is None or repository.latest_epoch() is not None:
            raise
        if as_json:
            nothing: dict[str, object] = {"checkpoint": repository.url, "epoch": None, "epochs": []}
            print_json({**nothing, "last_failure": _failure_as_data(failure)})
        else:
            say(f"no epoch is committed yet; {_failure_text(failure, None)}")
        raise typer.Exit from None


def print_checkpoint(
    reader: CheckpointReader, operators: Mapping[str, OperatorSizes], readers: Readers
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
    for line in _end_texts(manifest):
        say(line)
    if (failure := last_failure(reader.repository)) is not None:
        say(_failure_text(failure, manifest))
    print_readers(readers, otherwise=f"the last {INSPECTED.epochs} epochs")
    for name, counts in operators.items():
        out.print()
        _print_states(reader, name, counts.states)
        if reader.operator(name).holds_by_key:
            _print_skew(reader, name, counts)
        _print_restores(manifest.operators[name].shards)
        _print_placed(manifest.operators[name].placed)


def _end_texts(manifest: EpochManifest) -> Iterator[str]:
    """Yield how far sources were read, and the guarantees of sinks."""
    for name, offset in manifest.offsets.items():
        if isinstance(offset, dict):
            bad = manifest.bad_records.get(name, 0)
            wrong = f"; {count_text(bad, 'bad record', 'bad records')} so far" if bad else ""
            yield f"source {name}: {count_text(len(offset), 'partition', 'partitions')}{wrong}"
    for name, guarantee in manifest.guarantees.items():
        yield f"sink {name}: each record {guarantee}"


def _failure_text(failure: LastFailure, manifest: EpochManifest | None) -> str:
    """Return why the job failed last, and whether it has gone on since."""
    since = 0 if manifest is None else manifest.epoch - failure.epoch + 1
    gone_on = f"; {since:,} committed since" if since > 0 else ""
    return (
        f"last failure {instant(failure.at_us):%Y-%m-%d %H:%M:%S} UTC in epoch {failure.epoch}"
        f"{gone_on}: {failure.error}: {failure.message}"
    )


def _print_states(reader: CheckpointReader, operator: str, sizes: dict[str, StateSize]) -> None:
    record = reader.operator(operator)
    by = f" by {key_text(record)}" if record.key else ""
    title = f"operator {operator}{by} ← {', '.join(record.inputs)}"
    if record.broadcasts:
        title += f"; broadcast: {', '.join(record.broadcasts)}"
    table = empty_table(("rows", "bytes"), texts=("state", "type"))
    for state in record.states:
        table.add_row(state.name, Text(state_text(state)), *size_cells(sizes[state.name]))
    for name, what in ((TIMERS, "timers"), (WAITING, "buffered records")):
        if name in sizes:
            table.add_row(name, what, *size_cells(sizes[name]))
    if table.row_count:
        print_title(title)
        out.print(table)
    else:
        print_title(f"{title}: no state")
    clocks = time_text(record, reader.manifest.operators[operator])
    if clocks:
        out.print(clocks)
    if failed := reader.manifest.operators[operator].failed_so_far:
        out.print(f"{failed:,} records failed so far, and were dropped or collected")


def _print_skew(reader: CheckpointReader, operator: str, counts: OperatorSizes) -> None:
    """Print how evenly rows of keys are distributed over shards, and over key groups if they were
    read.
    """
    headings = ("shard", "key groups", "rows", "of mean", "fullest group")
    shards = reader.manifest.operators[operator].shards
    rows_of = [None if size is None else size.rows for size in counts.shards]
    counted_rows = [rows for rows in rows_of if rows is not None]
    total = sum(counted_rows) if len(counted_rows) == len(shards) else 0

    def cells(number: int, rows: int | None) -> Sequence[str]:
        first, last = shards[number].groups
        fullest = "–"
        if counts.groups is not None and rows:
            own = {g: counts.groups[g].rows for g in range(first, last + 1) if g in counts.groups}
            group = max(own, key=own.__getitem__)
            fullest = f"{group}: {own[group]:,}"
        return (
            str(number),
            range_text((first, last)),
            "–" if rows is None else f"{rows:,}",
            f"{rows * len(shards) / total:.2f}" if total and rows is not None else "–",
            fullest,
        )

    rows_of_shards = [(rows or 0, cells(n, rows)) for n, rows in enumerate(rows_of)]
    print_shards(headings, rows_of_shards, title=f"skew of {operator}")
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


def _print_placed(placed: Placed) -> None:
    """Print where shards ran; nothing for a job without a cluster."""
    if not placed.shards:
        return
    out.print(
        f"placement: {sum(placed.shards.values()):,} shards ran on {len(placed.shards):,} "
        f"executors, at most {max(placed.shards.values()):,} on one; {placed.moved:,} had moved; "
        f"{placed.restored_bytes:,} bytes restored, {placed.caught_up_bytes:,} caught up"
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


def _as_data(
    reader: CheckpointReader, operators: Mapping[str, OperatorSizes], readers: Readers
) -> dict[str, object]:
    """Return the contents of a checkpoint as JSON-able data."""
    return {
        "job": reader.job.name,
        "checkpoint": reader.repository.url,
        "epoch": reader.manifest.epoch,
        "epochs": reader.epochs,
        "rolled_back": reader.abandoned,
        "last_failure": _failure_as_data(last_failure(reader.repository)),
        "parallelism": reader.manifest.parallelism,
        "key_groups": reader.job.key_groups,
        "sources": {
            name: {"offsets": offset, "bad_records": reader.manifest.bad_records.get(name, 0)}
            for name, offset in reader.manifest.offsets.items()
            if isinstance(offset, dict)
        },
        "sinks": reader.manifest.guarantees,
        **readers_as_data(readers),
        "operators": [_operator_as_data(reader, *operator) for operator in operators.items()],
    }


def _failure_as_data(failure: LastFailure | None) -> dict[str, object] | None:
    if failure is None:
        return None
    return {
        "at": instant_text(instant(failure.at_us)),
        **failure.model_dump(include={"epoch", "error", "kind", "message"}),
    }


def _operator_as_data(
    reader: CheckpointReader, name: str, sizes: OperatorSizes
) -> dict[str, object]:
    operator, states = reader.operator(name), sizes.states
    return {
        "name": name,
        "key": key_text(operator),
        "states": [
            {"name": state.name, "type": state_text(state), **states[state.name]._asdict()}
            for state in operator.states
        ],
        "timers": states[TIMERS].rows if operator.timers else None,
        "waiting": None if operator.ordered is None else states[WAITING].rows,
        "event_time": _time_as_data(reader, name),
        "restore": _restores_as_data(reader.manifest.operators[name].shards),
        "failed": reader.manifest.operators[name].failed_so_far,
        "placed": reader.manifest.operators[name].placed.model_dump(),
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
        "waits_for": None if epoch.held_back is None else held_back_as_data(epoch.held_back),
    }
