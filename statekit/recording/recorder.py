"""`Recorder`: the options for recording the input of a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from statekit.byte_size import size_bytes
from statekit.errors import StateTypeError
from statekit.number_faults import int_fault, number_fault
from statekit.shown import shown

_SHARES = 1_000_000


@dataclass(frozen=True)
class Recorder:
    """Keeps the input of a job's shards, so that `statekit replay` can run an epoch again.

    Records are kept before the function processes them, and so are those that it fails on. Pass the
    recorder to `job.start` or `job.run`.

    Parameters:
        path: a directory of its own, or an object store URL, which all workers can write to; or
            the folder `recorded` of the checkpoint, where `statekit replay` looks by itself.
        operators: the names of the operators; None for all.
        shards: the numbers of the shards; None for all.
        sample: the share of the epochs that is kept. A failed epoch is treated as any other.
        limit: limit of all recordings, in bytes or as "1GB". Above it, the oldest epochs are
            removed. In one epoch, each shard keeps at most its part of the limit.

    Raises:
        StateTypeError: an option is not valid.

    >>> Recorder("/data/recorded", sample=0.5, limit="10GB").limit_bytes
    10737418240
    """

    path: str | Path
    operators: Collection[str] | None = None
    shards: Collection[int] | None = None
    sample: float = 1.0
    limit: int | str = "1GB"

    def __post_init__(self) -> None:
        use = "give a share of the epochs, from more than 0 up to 1"
        if fault := number_fault(self.sample, use, most=1, above=True):
            raise StateTypeError(f"Recorder(sample={shown(self.sample)}){fault}")
        for name, given in (("operators", self.operators), ("shards", self.shards)):
            if isinstance(given, str) or (given is not None and not isinstance(given, Collection)):
                raise StateTypeError(
                    f"Recorder({name}={shown(given)}): give a list, or None for all"
                )
        for shard in self.shards or ():
            if fault := int_fault(shard, "give the numbers of shards, from 0"):
                raise StateTypeError(f"Recorder(shards=[{shown(shard)}]){fault}")
        use = 'give at least 1 byte, as a number or as a text such as "1GB"'
        if not isinstance(self.limit, str) and (fault := int_fault(self.limit, use, least=1)):
            raise StateTypeError(f"Recorder(limit={shown(self.limit)}){fault}")
        _ = self.limit_bytes

    @property
    def limit_bytes(self) -> int:
        """The limit in bytes."""
        limit = self.limit
        return size_bytes(limit, "Recorder(limit)") if isinstance(limit, str) else limit

    def keeps(self, operator: str, epoch: int, shard: int) -> bool:
        """Return whether the input of a shard is kept. The result is the same in a replay."""
        if self.operators is not None and operator not in self.operators:
            return False
        if self.shards is not None and shard not in self.shards:
            return False
        return xxhash.xxh3_64_intdigest(b"%d" % epoch) % _SHARES < self.sample * _SHARES


def check_recorder(given: object, operators: Sequence[str]) -> None:
    """Check the recorder of a job.

    Parameters:
        operators: of the job.

    Raises:
        StateTypeError: it is not a recorder, or has an operator that the job does not have.
    """
    if not isinstance(given, Recorder):
        raise StateTypeError(f"record={shown(given, 100)}: give a recorder, as sk.Recorder(path)")
    if unknown := [name for name in given.operators or () if name not in operators]:
        raise StateTypeError(
            f"Recorder(operators={list(given.operators or ())}): the job has no "
            f"{shown(unknown[0])}, it has {', '.join(operators)}"
        )
