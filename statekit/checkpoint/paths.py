"""The paths of a checkpoint: construction and parsing.

job.json, job-2.json, …                   job descriptions
epochs/<epoch>.json                       manifests
epochs/<epoch>.first                      marks: older epochs were collected
epochs/<epoch>.swept                      marks: orphans were searched after this epoch
epochs/<epoch>-<unique>.closed            notes: a collector is about to collect older epochs
begun/<epoch>.json                        an epoch that was begun, with its processing time
begun/<epoch>.to-<epoch>.json             a rollback that was begun
data/<operator>/<unique>.<kind>           change files, histories, base snapshots and pages
held/<epoch>-<unique>.json                notes of processes that read one epoch
readers/<name>.json                       leases of named readers
mirrors/<name>.json                       positions of mirrors
recorded/<epoch>/<operator>/…             records of epochs, if a recorder keeps them here
failures/last.json                        the last failure of the job
transform.json                            the checkpoint is the target of an unfinished transform
savepoints/<name>/…, repairs/…, spark/…   savepoints, rows left out by repairs, Spark's own log
tmp/…                                     drafts on a local disk, reports of tasks
"""

from __future__ import annotations

import re

from statekit.clock import unique_id

BEGUN = "begun"
DATA = "data"
EPOCHS = "epochs"
FAILURES = "failures"
HELD = "held"
MIRRORS = "mirrors"
READERS = "readers"
RECORDED = "recorded"
REPAIRS = "repairs"
SAVEPOINTS = "savepoints"
SPARK = "spark"
TMP = "tmp"

SAVEPOINT = "savepoint.json"
"""The file that identifies a directory as a savepoint."""

TRANSFORM = "transform.json"
"""The file that marks a checkpoint that a transform has not completed."""

LAST_FAILURE = f"{FAILURES}/last.json"
"""The file with the last failure of the job."""

CHANGES = "changes.arrow"
HISTORY = "history.json"
BASE = "base.json"
PAGE = "shards.zst"
TABLES = ("sst", "rocksdb")
"""Kinds of files in `data`."""

EPOCH_NAME = re.compile(r"epochs/([0-9]{20})\.(json|first|swept)")
CLOSED_NAME = re.compile(r"epochs/([0-9]{20})-[0-9a-f]{32}\.closed")
BEGUN_NAME = re.compile(r"begun/([0-9]{20})\..*")
ROLLBACK_NAME = re.compile(r"begun/([0-9]{20})\.to-([0-9]{20})\.json")
HELD_NAME = re.compile(r"held/([0-9]{20})-[0-9a-f]{32}\.json")
LEASE_NAME = re.compile(r"readers/([A-Za-z_][A-Za-z0-9_.-]*)\.json")
JOB_NAME = re.compile(r"job(?:-([0-9]+))?\.json")


def epoch_path(epoch: int) -> str:
    """Return the path of the manifest of an epoch.

    >>> epoch_path(12)
    'epochs/00000000000000000012.json'
    """
    return f"{EPOCHS}/{epoch:020d}.json"


def first_path(epoch: int) -> str:
    """Return the path of the mark that all epochs before this one were collected.

    >>> first_path(12)
    'epochs/00000000000000000012.first'
    """
    return f"{EPOCHS}/{epoch:020d}.first"


def swept_path(epoch: int) -> str:
    """Return the path of the mark that a sweep of orphans ran while this epoch was the last one."""
    return f"{EPOCHS}/{epoch:020d}.swept"


def closed_path(epoch: int) -> str:
    """Return a new path for a collector's note: epochs before this one take no new leases."""
    return f"{EPOCHS}/{epoch:020d}-{unique_id()}.closed"


def note_path(epoch: int) -> str:
    """Return the path of the note that an epoch began.

    >>> note_path(12)
    'begun/00000000000000000012.json'
    """
    return f"{BEGUN}/{epoch:020d}.json"


def rollback_path(epoch: int, to: int) -> str:
    """Return the path of the note that a rollback began."""
    return f"{BEGUN}/{epoch:020d}.to-{to:020d}.json"


def held_path(epoch: int) -> str:
    """Return a new path for a reader's note that keeps an epoch."""
    return f"{HELD}/{epoch:020d}-{unique_id()}.json"


def lease_path(name: str) -> str:
    """Return the path of the lease of a reader.

    >>> lease_path("search-index")
    'readers/search-index.json'
    """
    return f"{READERS}/{name}.json"


def mirror_path(name: str) -> str:
    """Return the path of the position of a mirror."""
    return f"{MIRRORS}/{name}.json"


def data_path(operator: str, kind: str) -> str:
    """Return a new path for a file of an operator.

    Parameters:
        kind: the end of its name, such as `CHANGES`.
    """
    return f"{DATA}/{operator}/{unique_id()}.{kind}"


def page_path(operator: str, id: str) -> str:
    """Return the path of a page of shards.

    >>> page_path("count", "0123")
    'data/count/0123.shards.zst'
    """
    return f"{DATA}/{operator}/{id}.{PAGE}"


def job_path(number: int) -> str:
    """Return the path of a job description: `job.json`, `job-2.json`, …"""
    return "job.json" if number == 1 else f"job-{number}.json"


def job_number(path: str) -> int:
    """Return the number in a job path: the inverse of `job_path`."""
    match = JOB_NAME.fullmatch(path)
    return int(match[1] or 1) if match else 1


def reports_of(run: str) -> str:
    """Return the beginning of the paths of reports, given the id of the run of their tasks.

    >>> reports_of("0123")
    'tmp/0123.'
    """
    return f"{TMP}/{run}."


def report_path(run: str) -> str:
    """Return a new path for the reports of a task."""
    return f"{reports_of(run)}{unique_id()}.json"


def is_state(path: str) -> bool:
    """Return whether a file belongs to the state, so that restores need it."""
    return path.startswith((f"{EPOCHS}/", f"{DATA}/", "job"))


LEVELS = 3
"""The number of levels. Files of level 0 reference no others, files of higher levels may reference
lower ones.
"""


def level_of(path: str) -> int:
    """Return the level of a file in `data`: 0 for rows, 1 for a base or history, 2 for a page.

    >>> [level_of(f"data/count/0123.{kind}") for kind in (CHANGES, HISTORY, PAGE)]
    [0, 1, 2]
    """
    return 2 if path.endswith(f".{PAGE}") else int(path.endswith(".json"))


def file_kind(path: str) -> str:
    """Return the kind of a file as `statekit gc` names it.

    >>> file_kind("data/count/0123.changes.arrow"), file_kind("data/count/0123.sst")
    ('change files', 'base snapshots')
    >>> file_kind("data/count/notes.txt")
    'files of others'
    """
    folder, _, name = path.partition("/")
    if folder == EPOCHS:
        return "manifests"
    if "#" in path or folder in (TMP, BEGUN, HELD):
        return "drafts and notes"
    if folder == READERS:
        return "expired leases"
    if path.endswith(f".{CHANGES}"):
        return "change files"
    if path.endswith(f".{HISTORY}"):
        return "histories"
    if path.endswith(f".{PAGE}"):
        return "pages of manifests"
    if path.endswith((f".{BASE}", *(f".{kind}" for kind in TABLES))):
        return "base snapshots"
    return "files of others" if folder == DATA and name else "job files"
