"""Epoch ids: the identity of an epoch among all versions of a checkpoint."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

_TEXT = re.compile(r"(0|[1-9][0-9]{0,15})-([0-9a-f]{32})", re.ASCII)


class EpochId(NamedTuple):
    """The identity of an epoch. The number alone is not enough: a checkpoint that was replaced, for
    example by a backup, may have another epoch with the same number.

    Parameters:
        epoch: its number.
        manifest: the checksum of its manifest.

    >>> str(EpochId(12, "99aa06d3014798d86001c324468d497f"))
    '12-99aa06d3014798d86001c324468d497f'
    """

    epoch: int
    manifest: str

    def __str__(self) -> str:
        return f"{self.epoch}-{self.manifest}"

    @classmethod
    def of_text(cls, text: str) -> Self | None:
        """Parse the text of an id; None if it is no valid id.

        >>> EpochId.of_text("12-99aa06d3014798d86001c324468d497f").epoch, EpochId.of_text("12")
        (12, None)
        """
        match = _TEXT.fullmatch(text)
        return None if match is None else cls(int(match[1]), match[2])
