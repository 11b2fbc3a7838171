"""`statekit replay`: run recorded records of an epoch again, against the states before it."""

from __future__ import annotations

import contextlib
import pdb
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from statekit.checkpoint.paths import RECORDED
from statekit.checkpoint.repository import Repository
from statekit.cli.arguments import Checkpoint
from statekit.cli.tables import count_text, err, out, say
from statekit.errors import ProcessError, QueryError
from statekit.job.job import Job
from statekit.job.loader import load_job
from statekit.query.rows.state_rows import record_of_operator
from statekit.shown import shown
from statekit.stored_types import encoded_keys
from statekit.testing.replay import Replay, operator_of

_SHOWN_MAX = 100_000
"""How many characters of an emitted record are printed."""


def replay_epoch(
    checkpoint: Checkpoint,
    epoch: Annotated[
        int,
        typer.Option(help="The epoch. One that failed has the number after the last committed."),
    ],
    application: Annotated[str, typer.Option("--app", help="The job, as module:attribute.")],
    operator: Annotated[
        str | None, typer.Option(help="The operator; needed if the job has several.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Run this key's records only; several fields as a JSON array."),
    ] = None,
    shard: Annotated[int | None, typer.Option(help="Run this shard's records only.")] = None,
    recorded_at: Annotated[
        str | None,
        typer.Option(help="The path of the Recorder; without it, `recorded` in the checkpoint."),
    ] = None,
    on_disk: Annotated[
        bool, typer.Option("--on-disk", help="For shards that are larger than memory.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--pdb", help="Open a debugger where the function fails.")
    ] = False,
) -> None:
    """Run recorded records of an epoch again, against the states of the epoch before.

    Prints what the function emits and, for a key, a test that does the same. Nothing of the
    checkpoint changes, and no sink is written. Recorded records may be pickled: replay only what
    your own jobs recorded.
    """
    job, repository = load_job(application), Repository(checkpoint, create=False)
    replay_of = partial(
        Replay,
        job,
        repository,
        epoch=epoch,
        operator=operator,
        shard=shard,
        recorded_at=recorded_at or f"{checkpoint.rstrip('/')}/{RECORDED}",
        backend="rocksdb" if on_disk else "memory",
    )
    keys = [None] if key is None else _keys(job, repository, operator, key)
    _run(_first_found(replay_of, keys), debug=debug)


def _first_found(replay_of: Callable[..., Replay], keys: Sequence[Any]) -> Replay:
    """Return the replay of the first key that has recorded records.

    Raises:
        QueryError: none has.
    """
    for key in keys[:-1]:
        with contextlib.suppress(QueryError):
            return replay_of(key=key)
    return replay_of(key=keys[-1])


def _run(replayed: Replay, *, debug: bool) -> None:
    """Run the records, and print the outputs of the function and a test that does the same.

    Parameters:
        debug: open a debugger where the function fails.

    Raises:
        ProcessError: the function fails.
    """
    records = count_text(len(replayed.records), "record", "records")
    say(f"{records} of {replayed.operator.name} in epoch {replayed.epoch}")
    try:
        for emitted in replayed.run():
            out.print(shown(emitted, _SHOWN_MAX), markup=False, highlight=False, soft_wrap=True)
    except ProcessError as error:
        cause = error.__cause__ or error
        err.print("".join(traceback.format_exception(cause)), markup=False, highlight=False)
        if debug:
            pdb.post_mortem(cause.__traceback__)
        _print_test(replayed)
        raise
    _print_test(replayed)


def _keys(job: Job, repository: Repository, operator: str | None, text: str) -> list[Any]:
    """Return the keys that a text may mean: 42 may be a number or a text in plain dicts."""
    found = operator_of(job, operator)
    stored = repository.newest_job_file()
    if stored is None:
        raise QueryError(f"{repository.url} has no committed epoch: check the path")
    encoded = encoded_keys(record_of_operator(stored[0], found.name), text)
    return [found.declared.key_codec.decode(each)[0] for each in encoded]


def _print_test(replayed: Replay) -> None:
    if replayed.key is not None:
        say("")
        say("This test does the same:")
        say("")
        for line in replayed.as_test().splitlines():
            out.print(f"    {line}" if line else "", markup=False, highlight=False, soft_wrap=True)
