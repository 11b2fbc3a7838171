"""The command line: parse, call one function, print.

What lives here: commands, their help and their exit codes: 0 for success, 1 for an error that
statekit explains, 2 for wrong usage. What does not: any work.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statekit.backend import StateSize
from statekit.errors import StatekitError
from statekit.keygroup import group_range
from statekit.manifest import TIMERS
from statekit.reader import CheckpointReader, key_text, state_text, time_text
from statekit.timestamp import instant

__all__ = ["app", "main"]

app = typer.Typer(
    name="statekit",
    help="Typed, exactly-once state for Python stream processing on Spark.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_out = Console()
_err = Console(stderr=True)

Checkpoint = Annotated[
    str, typer.Argument(help="Directory or URL of a checkpoint.", show_default=False)
]
Epoch = Annotated[
    int | None, typer.Option(help="Look at this epoch instead of the last one.", show_default=False)
]


def main() -> None:
    """Run the command line; errors that statekit explains become one message and exit code 1."""
    try:
        app()
    except StatekitError as error:
        _err.print(f"[bold red]{type(error).__name__}[/] ({error.kind})", highlight=False)
        _err.print(str(error), markup=False, highlight=False)
        sys.exit(1)


@app.command(epilog="Example: statekit inspect ./checkpoint")
def inspect(
    checkpoint: Checkpoint,
    epoch: Epoch = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Trust the manifest's counts; read no state.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what a checkpoint holds: job, operators, states with types and sizes, epochs, skew."""
    reader = CheckpointReader(checkpoint, epoch=epoch)
    counted = {op.name: _counted(reader, op.name, fast) for op in reader.job.operators}
    if as_json:
        print(json.dumps(_as_data(reader, counted), indent=2))
        return
    _print_head(reader)
    for operator in reader.job.operators:
        sizes, groups = counted[operator.name]
        _print_states(reader, operator.name, sizes)
        _print_skew(reader, operator.name, groups, counted_all=not fast)


@app.command(
    # So that -1 is a key and not an option.
    context_settings={"ignore_unknown_options": True},
    epilog="Examples: statekit get ./checkpoint turnaround visits N14228  ·  "
    """statekit get ./checkpoint routes delays '["UA", 1545]' --epoch 7""",
)
def get(
    checkpoint: Checkpoint,
    operator: Annotated[str, typer.Argument(help="Name of the operator.", show_default=False)],
    state: Annotated[str, typer.Argument(help="Name of the state.", show_default=False)],
    key: Annotated[
        str,
        typer.Argument(help="The key; several fields as a JSON array.", show_default=False),
    ],
    epoch: Epoch = None,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Unpickle; only for checkpoints that you trust like code."
        ),
    ] = False,
) -> None:
    """Print what a state holds for one key, as JSON; null if it holds nothing."""
    reader = CheckpointReader(checkpoint, epoch=epoch, allow_pickle=allow_pickle)
    held = _finite(reader.get(operator, state, key))
    print(json.dumps(held, indent=2, ensure_ascii=False, allow_nan=False))


@app.command(epilog="Example: statekit demo --directory /tmp/flights")
def demo(
    directory: Annotated[
        Path, typer.Option(help="Where input, checkpoint and results go; emptied first.")
    ] = Path("demo-data"),
) -> None:
    """Run a job of four operators over the flights of 2013, kill it half-way, and check the result.

    Needs the extra `demo` (pip install 'statekit\\[demo]') and Java 17 or newer.
    """
    run: Callable[[Path], bool] = _demo_runner()
    if not run(directory):
        raise typer.Exit(1)


def _finite(held: Any) -> Any:
    """The same with NaN and infinities as text, which JSON has no numbers for."""
    if isinstance(held, float) and not math.isfinite(held):
        return str(held)
    if isinstance(held, dict):
        return {key: _finite(value) for key, value in held.items()}
    return [_finite(value) for value in held] if isinstance(held, list) else held


def _demo_runner() -> Callable[[Path], bool]:
    if importlib.util.find_spec("pyspark") is None:
        raise StatekitError("the demo needs PySpark: pip install 'statekit[demo]'")
    from statekit.demo import run

    return run


def _counted(
    reader: CheckpointReader, operator: str, fast: bool
) -> tuple[dict[str, StateSize], Counter[int]]:
    """Rows and bytes per state; rows per key group, or per shard if nothing is to be read."""
    shards = reader.manifest.operators[operator].shards
    if not fast:
        with tempfile.TemporaryDirectory(prefix="statekit-inspect-") as directory:
            return reader.sizes(operator, directory)
    sizes = {
        name: StateSize(
            sum(shard.rows.get(name, 0) for shard in shards),
            sum(shard.bytes.get(name, 0) for shard in shards),
        )
        for name in reader.operator(operator).holds
    }
    return sizes, Counter({n: sum(shard.rows.values()) for n, shard in enumerate(shards)})


def _print_head(reader: CheckpointReader) -> None:
    manifest, epochs = reader.manifest, reader.epochs
    committed = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=manifest.committed_at_us)
    _out.print(f"[bold]job {reader.job.name}[/]  {reader.repository.url}", highlight=False)
    _out.print(
        f"epoch {manifest.epoch} of {epochs[0]}–{epochs[-1]} ({len(epochs)} kept), committed "
        f"{committed:%Y-%m-%d %H:%M:%S} UTC, parallelism {manifest.parallelism}, "
        f"{manifest.key_groups} key groups",
        highlight=False,
    )


def _print_states(reader: CheckpointReader, operator: str, sizes: dict[str, StateSize]) -> None:
    record = reader.operator(operator)
    title = f"operator {operator} by {key_text(record)} ← {', '.join(record.inputs)}"
    table = Table(title=Text(title), title_justify="left")
    for heading in ("state", "type"):
        table.add_column(heading, overflow="fold")
    for heading in ("rows", "bytes"):
        table.add_column(heading, justify="right")
    for state in record.states:
        size = sizes[state.name]
        table.add_row(state.name, Text(state_text(state)), f"{size.rows:,}", f"{size.bytes:,}")
    if record.timers:
        size = sizes[TIMERS]
        table.add_row(TIMERS, "timers", f"{size.rows:,}", f"{size.bytes:,}")
    _out.print()
    _out.print(table)
    told = time_text(record, reader.manifest.operators[operator])
    if told:
        _out.print(told, highlight=False, soft_wrap=True)


def _print_skew(
    reader: CheckpointReader, operator: str, counts: Counter[int], *, counted_all: bool
) -> None:
    """How evenly rows are spread: over shards, and over key groups where they were counted."""
    shards, groups = reader.manifest.parallelism, reader.job.key_groups
    table = Table(title=f"skew of {operator}", title_justify="left")
    for heading in ("shard", "key groups", "rows", "of mean", "fullest group"):
        table.add_column(heading, justify="right")
    ranges = [group_range(shard, shards, groups) for shard in range(shards)]
    total = counts.total()
    for shard, (first, last) in enumerate(ranges):
        own = Counter({g: counts[g] for g in range(first, last + 1)}) if counted_all else None
        rows = own.total() if own is not None else counts[shard]
        fullest = "–"
        if own is not None and rows:
            group, held = own.most_common(1)[0]
            fullest = f"{group}: {held:,}"
        share = f"{rows * shards / total:.2f}" if total else "–"
        table.add_row(str(shard), f"{first}–{last}", f"{rows:,}", share, fullest)
    _out.print(table)


def _as_data(
    reader: CheckpointReader, counted: dict[str, tuple[dict[str, StateSize], Counter[int]]]
) -> dict[str, object]:
    return {
        "job": reader.job.name,
        "checkpoint": reader.repository.url,
        "epoch": reader.manifest.epoch,
        "epochs": reader.epochs,
        "parallelism": reader.manifest.parallelism,
        "key_groups": reader.job.key_groups,
        "operators": [
            {
                "name": operator.name,
                "key": key_text(operator),
                "states": [
                    {
                        "name": state.name,
                        "type": state_text(state),
                        **counted[operator.name][0][state.name]._asdict(),
                    }
                    for state in operator.states
                ],
                "timers": counted[operator.name][0][TIMERS].rows if operator.timers else None,
                "event_time": _time_as_data(reader, operator.name),
            }
            for operator in reader.job.operators
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


if __name__ == "__main__":
    main()
