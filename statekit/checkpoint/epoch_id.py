"""Epoch ids: what identifies an epoch among all versions of a checkpoint."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

_TEXT = re.compile(r"(0|[1-9][0-9]{0,15})-([0-9a-f]{32})", re.ASCII)


class EpochId(NamedTuple):
    """The identity of an epoch. A number alone is none: a checkpoint that was replaced, such as by
    a backup, may have another epoch of the same number.

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
        """Return the id that a text is; None if it is none.

        >>> EpochId.of_text("12-99aa06d3014798d86001c324468d497f").epoch, EpochId.of_text("12")
        (12, None)
        """
        match = _TEXT.fullmatch(text)
        return None if match is None else cls(int(match[1]), match[2])
