"""`statekit rescale`: change the parallelism or the number of key groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from statekit.checkpoint.offline import last_epoch
from statekit.checkpoint.repository import Repository
from statekit.cli.arguments import Checkpoint
from statekit.cli.submitted import changed_at_server
from statekit.cli.tables import (
    out,
    print_shards,
    print_title,
    progress_bar,
    range_text,
    say,
    size_cells,
)
from statekit.clock import stopwatch_s
from statekit.job.job import Job
from statekit.job.loader import load_job
from statekit.maintenance.new_shards import WrittenRows
from statekit.maintenance.rescale.offline import Rescaled, declared_states, rescale_offline
from statekit.maintenance.rescale.plan import (
    Load,
    Move,
    OperatorPlan,
    Shared,
    plan_of_rescale,
    skew_of,
)
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.query.rows.reader import CheckpointReader
from statekit.state.options import Rule
from statekit.state.redistribution import Specs


def rescale(
    checkpoint: Checkpoint,
    to: Annotated[int, typer.Option(help="Shards per operator.")],
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what would move, and change nothing.")
    ] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="With --plan: trust the manifest's counts.")
    ] = False,
    key_groups: Annotated[
        int | None,
        typer.Option(
            help=(
                "Rewrite all state with this number of key groups; a larger number allows more "
                "shards."
            )
        ),
    ] = None,
    application: Annotated[
        str | None,
        typer.Option(
            "--app",
            help=(
                "The job, as module:attribute. It is checked against the state, and needed if "
                "its functions redistribute operator state."
            ),
        ),
    ] = None,
) -> None:
    """Change the parallelism of a checkpoint while no job runs on it.

    A start with another parallelism does the same. Use this command to see a plan, to have the
    state verified, or to change the number of key groups.
    """
    others = {"plan": plan, "fast": fast, "key_groups": key_groups, "app": application}
    if changed_at_server(checkpoint, lambda client, job: client.rescale_job(job, to), **others):
        return
    if fast and not plan:
        raise typer.BadParameter("--fast needs --plan: a rescale always verifies")
    job = None if application is None else load_job(application)
    repository = Repository(checkpoint, create=False)
    last, stored = last_epoch(repository)
    specs = declared_states(repository, job, stored)
    rewrites = key_groups not in (None, last.key_groups)
    if rewrites and fast:
        raise typer.BadParameter("--fast knows nothing of other key groups: each key is hashed")
    if rewrites:
        say(
            f"{last.parallelism} shards of {last.key_groups} key groups → {to} of {key_groups}: "
            "all rows are written again"
        )
    if plan:
        reader = CheckpointReader(checkpoint)
        plans = plan_of_rescale(reader, to, key_groups=key_groups, fast=fast, specs=specs)
        print_plan(plans, counted=not fast)
    elif rewrites:
        _rewrite(repository, to, key_groups, specs)
    else:
        _move(repository, to, job)


def _move(repository: Repository, shards: int, job: Job | None) -> None:
    """Move key groups to other shards, without writing rows again."""
    begun = stopwatch_s()
    with progress_bar("bytes") as progress:
        done = rescale_offline(
            repository, shards, job=job, progress=lambda done: progress(done, None)
        )
    _print_done(done, stopwatch_s() - begun)


def _rewrite(repository: Repository, shards: int, key_groups: int | None, specs: Specs) -> None:
    """Write all state again, with another number of key groups."""
    begun, verified = stopwatch_s(), list[str]()

    def note_verified(operator: str, family: str, contents: WrittenRows) -> None:
        verified.append(f"  {operator}.{family}: {contents}")

    with progress_bar("rows") as progress:
        manifest = rewrite_checkpoint(
            repository,
            parallelism=shards,
            key_groups=key_groups,
            progress=progress,
            verified=note_verified,
            specs=specs,
        )
    out.print(f"written, read back and found the same in {stopwatch_s() - begun:.2f} s:")
    for line in verified:
        say(line)
    out.print(f"committed as epoch {manifest.epoch}. Earlier epochs are as they were.")


def print_plan(plans: Sequence[OperatorPlan], *, counted: bool) -> None:
    """Print tables per operator: moves, sizes of shards, and the fullest key groups."""
    for plan in plans:
        if plan.has_keys:
            _print_moves(plan)
        else:
            print_title(f"{_title(plan)}: no state of keys")
        for shared in plan.shared:
            say(f"operator state {shared.name}, {shared.size.rows:,} rows: {_rule_text(shared)}")
        out.print()
    if not counted:
        out.print("– is not known without counting: leave out --fast to count")


def _print_moves(plan: OperatorPlan) -> None:
    if plan.moves:
        headings = ("key groups", "from shard", "to shard", "rows", "bytes")
        moves = []
        for move in plan.moves:
            cells = range_text(move.groups), str(move.source), str(move.target)
            moves.append((_rows(move), (*cells, *size_cells(move.size))))
        print_shards(headings, moves, title=_title(plan))
    else:
        print_title(_title(plan))
    _print_loads(plan)
    before, after = skew_of(plan.before), skew_of(plan.after)
    out.print(f"fullest shard, of the mean: {_times(before)} before, {_times(after)} after")
    if plan.hot:
        total = sum(load.size.rows for load in plan.before if load.size is not None)
        fullest = ", ".join(
            f"{group} ({size.rows:,}, {size.rows / total:.1%})" for group, size in plan.hot
        )
        say(f"fullest key groups: {fullest}")


def _rule_text(shared: Shared) -> str:
    """Describe how operator state is redistributed."""
    if shared.rule is not None:
        return _RULES[shared.rule]
    if shared.size.rows:
        return "no rule, so this is refused: declare what becomes of it"
    return "nothing to redistribute"


_RULES: dict[Rule, str] = {
    "even": "divided evenly",
    "union": "all of it for every shard",
    "broadcast": "copied",
    "hooks": "split and merged by functions of the job, which --app names",
}


def _print_done(done: Rescaled, seconds: float) -> None:
    """Print the result of a rescale."""
    before, after = done.before, done.after
    if after is before:
        out.print(f"parallelism is {before.parallelism} already: nothing to do")
        return
    out.print(f"verified {done.files:,} files, {done.bytes:,} bytes, in {seconds:.2f} s")
    out.print(
        f"parallelism {before.parallelism} → {after.parallelism}, committed as epoch {after.epoch}"
    )


def _title(plan: OperatorPlan) -> str:
    return f"operator {plan.name}: {len(plan.before)} → {len(plan.after)} shards"


def _print_loads(plan: OperatorPlan) -> None:
    sizes = [load.size.rows for load in plan.after if load.size is not None]
    mean = sum(sizes) / len(plan.after) if len(sizes) == len(plan.after) else 0
    rows = []
    for number, load in enumerate(plan.after):
        share = f"{_rows(load) / mean:.2f}" if mean else "–"
        cells = str(number), range_text(load.groups), *size_cells(load.size), share
        rows.append((_rows(load), cells))
    print_shards(("new shard", "key groups", "rows", "bytes", "of mean"), rows)


def _rows(shards: Load | Move) -> int:
    return 0 if shards.size is None else shards.size.rows


def _times(skew: float | None) -> str:
    return "–" if skew is None else f"{skew:.2f}"
