"""`BaseOptions`: the conditions for taking a base snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statekit.checkpoint.shard_contents import ReplayCost
from statekit.errors import StateTypeError
from statekit.number_faults import number_fault
from statekit.shown import shown

# Cost of a restore, measured on one core: mutations applied and bytes of tables fetched per
# second, and the seconds that each file adds.
_ROWS_PER_S = 1_500_000
_BYTES_PER_S = 500_000_000
_FILE_S = 0.002

# A database this much larger than its rows is merged before the upload: each byte
# stays in the checkpoint until the next base.
SLACK_MAX = 1.3

# Tables take a little more than their rows where nothing can be compressed.
_TABLE_OVERHEAD = 1.1

# Below this, slack is of no account: each table has a few hundred bytes of its own.
SMALL_BYTES = 1_000_000

Choice = Literal["none", "changed tables", "merged"]


def replay_seconds(chain: ReplayCost) -> float:
    """Estimate the time for applying the change files, in seconds.

    >>> replay_seconds(ReplayCost(files=10, rows=300_000))
    0.22
    """
    return chain.rows / _ROWS_PER_S + chain.files * _FILE_S


@dataclass(frozen=True)
class BaseOptions:
    """The conditions for base snapshots, and the limit of their uploads.

    A shard takes a base once two conditions hold. Applying the change files since the last base
    takes long enough. And the upload of the base is within the upload budget: the size of these
    change files, times `uploaded_per_changed - 1`.

    Parameters:
        replay_seconds: a base is due once applying the change files since the last one would take
            longer than this, and longer than half of the time to read a base. A smaller value makes
            restores faster and uploads more frequent.
        bases: whether bases are taken. Without bases, a restore applies all change files of the
            job's history.
        uploaded_per_changed: bytes that may be uploaded, change files included, for each byte that
            changed; more than 1. Below about 1.5, few bases are taken, and the checkpoint contains
            several times the state.

    Raises:
        StateTypeError: a number is out of range.
    """

    replay_seconds: float = 0.25
    bases: bool = True
    uploaded_per_changed: float = 2.1

    def __post_init__(self) -> None:
        for name, least in (("replay_seconds", 0), ("uploaded_per_changed", 1)):
            given = getattr(self, name)
            if fault := number_fault(given, f"give {least} or more", least=least):
                raise StateTypeError(f"{name}={shown(given)}{fault}")

    def is_due(self, chain: ReplayCost, row_bytes: int) -> bool:
        """Return whether applying the change files takes so long that a base is due.

        Parameters:
            row_bytes: bytes of keys and values in the shard.
        """
        return replay_seconds(chain) > max(self.replay_seconds, row_bytes / _BYTES_PER_S / 2)

    def choice(self, chain: ReplayCost, *, size: int, new_bytes: int, row_bytes: int) -> Choice:
        """Return the kind of upload for a base. "none" until an upload is within the upload budget.

        Parameters:
            size: bytes of all tables of the databases.
            new_bytes: bytes of the tables that are not in the checkpoint yet.
            row_bytes: bytes of keys and values.
        """
        if not self.bases:
            return "none"
        budget = chain.since_base * (self.uploaded_per_changed - 1)
        if size <= max(row_bytes * SLACK_MAX, SMALL_BYTES):
            return "changed tables" if new_bytes <= budget else "none"
        return "merged" if min(size, int(row_bytes * _TABLE_OVERHEAD)) <= budget else "none"
