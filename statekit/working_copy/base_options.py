"""`BaseOptions`: when a base snapshot is taken.

Two things decide. A base is worth it once applying the change files since the last one would take
long; and it has to be affordable: what was changed pays for what is uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statekit.checkpoint.shard_contents import Chain
from statekit.errors import StateTypeError

# What restoring costs, measured on one core: mutations applied and bytes of tables fetched per
# second, and the seconds that each file adds.
_ROWS_PER_S = 1_500_000
_BYTES_PER_S = 500_000_000
_FILE_S = 0.002

# A database that holds so much more than its rows is uploaded merged into one piece: each byte
# stays in the checkpoint until the next base.
SLACK_MAX = 1.3

# Tables take a little more than their rows where nothing can be compressed.
_TABLE_OVERHEAD = 1.1

# A base may run into debt by so much of the state, which later changes pay back: so one is taken
# behind a load, where tables take a little more than what was loaded has paid for. And by no more
# than so much of what was changed, since each change of parallelism begins a new account.
_ON_CREDIT = 0.2

# Shards that were loaded together would take all later bases together: much to upload at once, and
# the old bases beside the new ones. So their second ones are put off, by so much of the state.
_STAGGERED = 0.5

# Any run of key groups is spread evenly by this.
_GOLDEN = (5**0.5 - 1) / 2

# Below this, slack is of no account: each table has a few hundred bytes of its own.
SMALL_BYTES = 1_000_000

Choice = Literal["none", "changed tables", "merged"]


def replay_seconds(chain: Chain) -> float:
    """How long applying the change files takes, about.

    >>> replay_seconds(Chain(files=10, rows=300_000))
    0.22
    """
    return chain.rows / _ROWS_PER_S + chain.files * _FILE_S


@dataclass(frozen=True)
class Database:
    """What is known of a shard's database when the decision is made.

    Parameters:
        bytes: of its tables.
        new_bytes: of those that are not in the checkpoint yet.
        row_bytes: of keys and values in it.
    """

    bytes: int
    new_bytes: int
    row_bytes: int


@dataclass(frozen=True)
class BaseOptions:
    """When base snapshots are taken, and what may be uploaded for them.

    Parameters:
        replay_seconds: a base is taken when applying the change files since the last one would take
            longer than this, and longer than half of what it takes to read a base. Less makes
            restores faster and uploads more frequent.
        bases: whether any are taken. Without, a restore applies all change files there ever were.
        merges: whether many small change files are merged where a base cannot be afforded.
        uploaded_per_changed: how many bytes may be uploaded, change files included, for each byte
            that is changed, over time. Bases wait until that pays for them. At least 1; with less
            than about 1.5, so few are taken that the checkpoint holds several times the state.

    Raises:
        StateTypeError: a number that cannot be.
    """

    replay_seconds: float = 0.25
    bases: bool = True
    merges: bool = True
    uploaded_per_changed: float = 1.9

    def __post_init__(self) -> None:
        if not self.replay_seconds >= 0:
            raise StateTypeError(f"replay_seconds={self.replay_seconds!r}: give 0 or more")
        if not self.uploaded_per_changed >= 1:
            raise StateTypeError(
                f"uploaded_per_changed={self.uploaded_per_changed!r}: give 1 or more"
            )

    def is_worth_it(self, chain: Chain, row_bytes: int) -> bool:
        """Whether applying the chain takes so long that something should be done about it."""
        return replay_seconds(chain) > max(self.replay_seconds, row_bytes / _BYTES_PER_S / 2)

    def credit(self, chain: Chain) -> int:
        """How many bytes may be uploaded for bases and for what is merged."""
        return int(chain.changed * self.uploaded_per_changed) - chain.uploaded - chain.forgone

    def settled(self, chain: Chain) -> Chain:
        """The chain behind a base: debts stay, and what is left of the credit is forgone.

        Otherwise a load that could be compressed well would pay for bases long after it.
        """
        return _forgoing(chain, max(0, self.credit(chain)))

    def staggered(self, chain: Chain, row_bytes: int, first_group: int) -> Chain:
        """The chain behind the first base of a shard that starts with this key group.

        Each shard waits for its second base by another part of its state.

        Parameters:
            row_bytes: of keys and values in the shard; 0 or more.
        """
        return _forgoing(chain, int(row_bytes * _STAGGERED * (first_group * _GOLDEN % 1)))

    def choice(self, chain: Chain, database: Database) -> Choice:
        """What can be afforded."""
        if not self.bases:
            return "none"
        credit = self.credit(chain) + min(database.row_bytes, chain.changed) * _ON_CREDIT
        if database.bytes <= max(database.row_bytes * SLACK_MAX, SMALL_BYTES):
            return "changed tables" if database.new_bytes <= credit else "none"
        merged = min(database.bytes, int(database.row_bytes * _TABLE_OVERHEAD))
        return "merged" if merged <= credit else "none"


def _forgoing(chain: Chain, uploads: int) -> Chain:
    return Chain(**{**dict(chain), "forgone": chain.forgone + uploads})
