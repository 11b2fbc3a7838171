"""`statekit submit`, `jobs`, `start`, `stop`, `restart` and `logs`: jobs of a server.

The address of a job at a server is `http://server:8321/submitted/NAME`. `statekit rescale`,
`rollback` and `savepoint` take it in place of a checkpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statekit.cli.arguments import AsJson, Heartbeat, JobName, Restart, Settings, Trigger
from statekit.cli.declared_jobs import read_text
from statekit.cli.tables import out, print_line, print_table, say
from statekit.errors import StateTypeError
from statekit.job.loader import load_job
from statekit.optional_packages import check_installed
from statekit.printable import printable

if TYPE_CHECKING:
    from statekit.query.client import Client

_ADDRESS = re.compile(r"(https?://.+?)/submitted/([^/]+)/?")

Server = Annotated[str, typer.Argument(help="Address of the server, as http://127.0.0.1:8321.")]
Name = Annotated[str, typer.Argument(help="Name of the job at the server.")]


def submit_job(
    url: Server,
    job: JobName,
    name: Annotated[
        str | None, typer.Option(help="Its name at the server; that of the job by default.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Directory or URL of the checkpoint; by default of the name of the job."),
    ] = None,
    set_: Settings = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Continue the job of that name with this document.")
    ] = False,
    spark: Annotated[str | None, typer.Option(help="Run on Spark, with this master.")] = None,
    parallelism: Annotated[int | None, typer.Option(help="Shards per operator.")] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when all records that are there were read.")
    ] = False,
    restart: Restart = None,
    trigger: Trigger = None,
    heartbeat: Heartbeat = None,
    alert_after: Annotated[
        str | None,
        typer.Option(help="The age of the last epoch that is too old; '5 minutes' by default."),
    ] = None,
) -> None:
    """Submit a job to a server, which runs it until it is stopped.

    The token is in the environment variable STATEKIT_TOKEN.
    """
    document = read_text(job) if job.endswith(".json") else load_job(job).to_json()
    options: dict[str, Any] = {
        "checkpoint": checkpoint,
        "settings": list(set_ or ()),
        "replace": replace,
        "spark": spark,
        "parallelism": parallelism,
        "follow": not once,
        "restart": restart,
        "trigger": trigger,
        "heartbeat": heartbeat,
        "alert_after": alert_after,
    }
    given = {option: of for option, of in options.items() if of is not None}
    with client_of(url) as client:
        _print(client.submit(document, name, **given), url)


def list_jobs(url: Server, as_json: AsJson = False) -> None:
    """Print the submitted jobs of a server with their status."""
    with client_of(url) as client:
        jobs = client.submitted_jobs()
    if as_json:
        for job in jobs:
            print_line(job)
        return
    headings = ("epoch", "last epoch", "records/s", "lag", "failures")
    print_table(headings, map(_cells, jobs), texts=("job", "status"))
    for job in jobs:
        if job["last_failure"]:
            say(f"{job['name']} failed at {job['last_failure_at']}: {_safe(job['last_failure'])}")
        if (done := job["done"]) and done["error"]:
            what = f"{done['operation']} of {job['name']}"
            say(f"{what} failed at {done['at']}: {_safe(done['error'])}")


def start_job(
    url: Server,
    name: Name,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew", help="Also without its checkpoint: it begins anew, and repeats its outputs."
        ),
    ] = False,
) -> None:
    """Start a job of a server that was stopped, has failed or has ended."""
    with client_of(url) as client:
        _print(client.start_job(name, anew=anew), url)


def stop_job(url: Server, name: Name) -> None:
    """Stop a job of a server after its epoch. It stays stopped until it is started."""
    with client_of(url) as client:
        _print(client.stop_job(name), url)


def delete_job(url: Server, name: Name) -> None:
    """Delete a job of a server that does not run, with its log. Its checkpoint stays."""
    with client_of(url) as client:
        _print(client.delete_job(name), url)


def restart_job(url: Server, name: Name) -> None:
    """Run a job of a server in a new process, after its epoch."""
    with client_of(url) as client:
        _print(client.restart_job(name), url)


def print_log(
    url: Server,
    name: Name,
    lines: Annotated[int, typer.Option(min=1, max=10_000, help="The number of lines.")] = 200,
) -> None:
    """Print the last lines that a job of a server has printed."""
    with client_of(url) as client:
        for line in client.job_log(name, lines):
            print(printable(line))


def client_of(url: str) -> Client:
    """Return a client of a server, with the token in the environment."""
    check_installed("jobs", "httpx", "client")
    from statekit.query.client import Client

    return Client(url, token=os.environ.get("STATEKIT_TOKEN"), timeout="130 seconds")


def changed_at_server(
    place: str, change: Callable[[Client, str], dict[str, Any]], **others: object
) -> bool:
    """Change a job of a server, if the place is the address of one, and return whether it is.

    Parameters:
        change: makes the request for the name of the job.
        others: options of the command that only checkpoints have. They are empty if they were not
            given.

    Raises:
        StateTypeError: one of them was given.
        StatekitError: the server refuses, or cannot be reached.
    """
    if (match := _ADDRESS.fullmatch(place)) is None:
        return False
    if wrong := [name for name, value in others.items() if value]:
        raise StateTypeError(
            f"--{wrong[0].replace('_', '-')} is for checkpoints, and {place} is a job of a server: "
            "leave it out. Nothing was changed"
        )
    with client_of(match[1]) as client:
        _print(change(client, match[2]), match[1])
    return True


def _print(job: dict[str, Any], url: str) -> None:
    operation = f", {job['operation']} pending" if job["operation"] else ""
    say(f"{job['name']}: to be {job['desired']}, now {job['status']}{operation}")
    out.print(f"{url.rstrip('/')}/submitted/{job['name']}", style="dim", soft_wrap=True)


def _safe(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))


def _cells(job: dict[str, Any]) -> tuple[str, ...]:
    age, lag = job["last_epoch_age_s"], sum(filter(None, job["lag"].values()))
    rate = job["records_per_second"]
    return (
        job["name"],
        job["status"],
        "–" if job["epoch"] is None else f"{job['epoch']:,}",
        "–" if age is None else f"{age:,} s ago{' (too old)' if job['is_late'] else ''}",
        "–" if rate is None else f"{rate:,.0f}",
        "–" if not job["lag"] else f"{lag:,}",
        f"{job['failures']:,}",
    )
