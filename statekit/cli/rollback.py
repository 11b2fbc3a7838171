"""`statekit rollback`: go back to an earlier epoch."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Annotated

import typer

from statekit.checkpoint.manifest import EpochManifest, InputOffset
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import Rollback
from statekit.checkpoint.rollback import plan as plan_of_rollback
from statekit.cli.arguments import Checkpoint, DryRun
from statekit.cli.submitted import changed_at_server
from statekit.cli.tables import out, print_table, say
from statekit.timestamp import instant


def epochs_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Return ranges of epochs as text.

    >>> epochs_text([(5, 7), (9, 9)]), epochs_text([(9, 9)])
    ('epochs 5–7, 9', 'epoch 9')
    """
    texts = [str(first) if first == last else f"{first}–{last}" for first, last in ranges]
    return f"{'epoch' if texts[0].isdigit() and len(texts) == 1 else 'epochs'} {', '.join(texts)}"


def rolled_back_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Return that ranges of epochs were rolled back, as a sentence.

    >>> rolled_back_text([(9, 9)])
    'epoch 9 was rolled back'
    """
    epochs = epochs_text(ranges)
    return f"{epochs} {'was' if epochs.startswith('epoch ') else 'were'} rolled back"


def rollback(
    checkpoint: Checkpoint,
    to: Annotated[int, typer.Option(help="The epoch to go back to.")],
    dry_run: DryRun = False,
) -> None:
    """Continue a checkpoint from an earlier epoch. A running job is fenced.

    Does not ask for confirmation. After a kill, run it again or start the job.
    """
    at_server = changed_at_server(
        checkpoint, lambda client, name: client.roll_back_job(name, to), dry_run=dry_run
    )
    if at_server:
        return
    plan = plan_of_rollback(Repository(checkpoint, create=False), to)
    print_rollback(plan)
    if dry_run:
        out.print("dry run: nothing was changed")
        return
    plan.carry_out()
    out.print(f"[green]epoch {plan.manifest.epoch} has the state of epoch {plan.target.epoch}[/]")


def print_rollback(plan: Rollback) -> None:
    """Print the effects of a rollback before it is done."""
    last, target, manifest = plan.last, plan.target, plan.manifest
    out.print(f"[bold]job {target.job}[/]  {plan.repository.url}")
    if plan.is_committed:
        out.print(
            f"epoch {manifest.epoch} has the state of epoch {target.epoch} already; Spark's part "
            "is set back if needed"
        )
        return
    out.print(f"from epoch {_committed(last)}")
    out.print(f"to epoch   {_committed(target)}, as epoch {manifest.epoch}")
    if last.parallelism != target.parallelism:
        out.print(f"parallelism {last.parallelism} → {target.parallelism}, as it was then")
    _print_rows(last, target)
    abandoned = epochs_text([(target.epoch + 1, last.epoch)])
    for line in (
        _input_text(last, target),
        f"{abandoned}: no longer part of the history; `--epoch` still reads them",
        f"outputs of {abandoned}: files and tables lose them when the job next writes, as far as "
        "the sink can; topics, callbacks and writers of Spark keep them, and get later epochs "
        "under new numbers",
    ):
        say(line)


def _committed(manifest: EpochManifest) -> str:
    at = instant(manifest.committed_at_us)
    return f"{manifest.epoch}, committed {at:%Y-%m-%d %H:%M:%S} UTC"


def _print_rows(last: EpochManifest, target: EpochManifest) -> None:
    """Print the rows per state at both epochs, from the manifests."""
    headings = [f"rows at epoch {manifest.epoch}" for manifest in (last, target)]
    now, then = (manifest.by_state(attrgetter("rows")) for manifest in (last, target))
    names = dict.fromkeys([*then, *now])
    rows = [(name, f"{now.get(name, 0):,}", f"{then.get(name, 0):,}") for name in names]
    print_table(headings, rows, texts=("state",))


def _input_text(last: EpochManifest, target: EpochManifest) -> str:
    if last.batch is not None:
        behind = "from its start" if target.batch is None else f"after micro-batch {target.batch}"
        return f"input: Spark continues {behind}; micro-batch {last.batch} was the last"
    read = [
        _offset_text(name, target.offsets.get(name, 0), to) for name, to in last.offsets.items()
    ]
    return f"input: {', '.join(read) if read else 'no position is kept for this job'}"


def _offset_text(name: str, then: InputOffset, now: InputOffset) -> str:
    if isinstance(now, int):
        return f"{name} continues after record {then:,} of {now:,}"
    return f"{name} continues at the offsets of that epoch"
