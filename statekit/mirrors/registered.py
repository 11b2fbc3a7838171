"""Mirrors that are registered in a checkpoint, by the positions that they have written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from statekit.checkpoint import paths
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.leases.lease_files import StoredLease, lease_of
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.store import in_parallel
from statekit.errors import QueryError, StatekitError
from statekit.job.mirror_options import LEASE_PREFIX, MirrorMode
from statekit.mirrors.mirror_position import MirrorPosition, stored_position
from statekit.shown import shown

MirrorStatus = Literal["running", "stopped", "dead"]
"""Its lease is held, or was released, or its process has ended without a release."""


@dataclass(frozen=True)
class RegisteredMirror:
    """A mirror that has written its tables.

    Parameters:
        name: of the mirror.
        mode: of its tables.
        places: of the tables, by state; empty texts if an earlier version has written them.
        epoch: that the tables equal.
        status: of its process.
    """

    name: str
    mode: MirrorMode
    places: Mapping[str, str]
    epoch: int
    status: MirrorStatus

    def lag(self, latest: int) -> int:
        """Return the number of epochs that the tables do not have.

        Parameters:
            latest: the last committed epoch.
        """
        return max(0, latest - self.epoch)


def registered_mirrors(repository: Repository) -> list[RegisteredMirror]:
    """Return the mirrors of a checkpoint by name. Damaged positions are left out.

    Raises:
        StorageError: the store cannot be reached.
    """
    names = sorted(_names(repository))
    if not names:
        return []
    now = repository.store_time()
    found = in_parallel(partial(_read, repository, now), names)
    return [mirror for mirror in found if mirror is not None]


def forget_mirror(repository: Repository, name: str) -> None:
    """Remove a mirror that has ended from a checkpoint, with its lease. Its tables stay.

    Raises:
        QueryError: there is no such mirror, or it runs.
    """
    found = {mirror.name: mirror for mirror in registered_mirrors(repository)}
    if name not in found:
        known = ", ".join(map(shown, found)) or "none"
        raise QueryError(
            f"{repository.url} has no mirror {shown(name)}: it has {known}. Nothing was removed"
        )
    if found[name].status == "running":
        raise QueryError(f"mirror {shown(name)} runs: stop it first. Nothing was removed")
    repository.discard(paths.lease_path(f"{LEASE_PREFIX}{name}"))
    repository.discard(paths.mirror_path(name))


def _names(repository: Repository) -> Iterator[str]:
    for file in repository.names(paths.MIRRORS):
        name = file.rpartition("/")[2]
        if name.endswith(".json"):
            yield name.removesuffix(".json")


def _read(repository: Repository, now: dt.datetime, name: str) -> RegisteredMirror | None:
    try:
        position = stored_position(repository, name)
        lease = lease_of(repository, f"{LEASE_PREFIX}{name}")
    except StatekitError:
        return None  # a newer version of statekit has written it
    if position is None:
        return None
    places = {state: position.places.get(state, "") for state in position.tables}
    epoch, status = _epoch(position, lease), _status(lease, now)
    return RegisteredMirror(name, position.mode, places, epoch, status)


def _epoch(position: MirrorPosition, lease: StoredLease | None) -> int:
    """Return the epoch that the tables certainly have: the lease is moved after a step, and the
    position is written before.
    """
    end = EpochId.of_text(position.end)
    last = 0 if end is None else end.epoch
    return last if lease is None else min(last, lease.lease.epoch)


def _status(lease: StoredLease | None, now: dt.datetime) -> MirrorStatus:
    if lease is None or lease.lease.released:
        return "stopped"
    is_held = lease.is_valid(now, skew=dt.timedelta(0)) and not lease.lease.holder.has_ended
    return "running" if is_held else "dead"
