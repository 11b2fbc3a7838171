"""The stored form of an operator's shards: the latest entries, and pages with all others.

A page is a separate file with the entries of some shards, in any combination, and never changes.
The entries that changed last are in the manifest itself, and count before those in pages; of the
pages, the last one with an entry of a shard counts. If a manifest would have too many entries, they
become a page, which it and the epochs after it reference. So a job with few shards has no pages.

A page without an entry that counts is no longer referenced. If there are too many pages, those with
the fewest entries that count are merged into the new one. So the cost of an epoch follows the
number of shards that it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar

import pyarrow as pa
from pydantic import Field

from statekit.checkpoint.manifest import ShardState
from statekit.checkpoint.paths import page_path
from statekit.checkpoint.sealed_json import FileRef, Record, Sealed
from statekit.errors import CorruptCheckpointError
from statekit.names import StoredId, StoredName


@dataclass(frozen=True)
class PageLimits:
    """The limits of a manifest's entries, and of the size and number of pages.

    Parameters:
        own: the largest number of entries of an operator in the manifest itself.
        entries: the largest number of entries in a page.
        spread: how many times as many pages there may be as full ones have room for all shards.
    """

    own: int = 64
    entries: int = 256
    spread: int = 4

    def pages_for(self, entries: int) -> int:
        """Return the number of full pages for a number of entries."""
        return -(-entries // self.entries)


PAGE_LIMITS = PageLimits()
"""The default limits. With 10,000 shards a manifest has at most 160 references, of about 100 bytes
each, and 64 entries, of some hundred bytes each.
"""

PAGE_BYTES_MAX = 1 << 28
"""The maximum size of a page, compressed or not. A full one has some hundred kilobytes."""

_LEVEL = 3


class PageRef(Record):
    """A reference to a page. Shorter than a `FileRef`: a manifest has many of them.

    Parameters:
        id: the unique part of its name.
        size: in bytes, compressed.
        checksum: XXH3-128 of its content, in hex.
    """

    id: StoredId
    size: Annotated[int, Field(ge=0, le=PAGE_BYTES_MAX)]
    checksum: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

    def file(self, operator: str) -> FileRef:
        """Return the reference in the form for any file."""
        return FileRef(path=page_path(operator, self.id), size=self.size, checksum=self.checksum)


class ShardPage(Sealed):
    """A page: the entries of some shards of an operator. A separate file, compressed with zstd.

    Parameters:
        operator: its operator.
        shards: their entries, in key group order.
    """

    title: ClassVar[str] = "a page of shards"

    operator: StoredName
    shards: Annotated[tuple[ShardState, ...], Field(min_length=1)]

    def to_zstd(self) -> bytes:
        """Return the content of the file."""
        packed: bytes = pa.Codec("zstd", _LEVEL).compress(self.to_bytes(), asbytes=True)
        return packed

    @classmethod
    def from_zstd(cls, data: bytes, path: str) -> ShardPage:
        """Verify and parse the content of a file.

        Raises:
            CorruptCheckpointError: truncated, altered, or not a page.
            RestoreError: written by a newer version of statekit.
        """
        try:
            with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
                content = stream.read(PAGE_BYTES_MAX + 1)
        except (OSError, pa.ArrowInvalid) as error:
            raise CorruptCheckpointError(
                f"{path} is not {cls.title}: {error}. Restore the file from a backup, or start "
                "from an earlier epoch or a savepoint"
            ) from error
        if len(content) > PAGE_BYTES_MAX:
            raise CorruptCheckpointError(
                f"{path} is not {cls.title}: it has more than {PAGE_BYTES_MAX:,} bytes. Restore "
                "the file from a backup, or start from an earlier epoch or a savepoint"
            )
        return cls.from_bytes(content, path)


Page = Mapping[int, ShardState]
"""The entries of a page, by the first key group of each shard."""


def page_of(shards: Sequence[ShardState]) -> Page:
    """Return the entries of a page."""
    return {shard.first_group: shard for shard in shards}


@dataclass(frozen=True)
class PagedShards:
    """The shards of an operator after an epoch, in their stored form.

    Parameters:
        pages: with their references, oldest first.
        own: the entries in the manifest itself, in key group order.
    """

    pages: tuple[tuple[PageRef, Page], ...] = ()
    own: tuple[ShardState, ...] = ()

    @cached_property
    def shards(self) -> tuple[ShardState, ...]:
        """The valid entries, in key group order."""
        latest: dict[int, ShardState] = {}
        for _, page in self.pages:
            latest.update(page)
        latest.update(page_of(self.own))
        return tuple(latest[first] for first in sorted(latest))

    @property
    def refs(self) -> tuple[PageRef, ...]:
        return tuple(ref for ref, _ in self.pages)

    def followed_by(
        self,
        shards: Sequence[ShardState],
        limits: PageLimits,
        write: Callable[[list[Sequence[ShardState]]], list[PageRef]],
    ) -> PagedShards:
        """Return the stored form of the next epoch's shards, and write its new pages.

        Parameters:
            shards: all shards after that epoch, in key group order.
            write: stores the entries of new pages, and returns their references.
        """
        kept, fresh = self._carried(shards)
        if len(fresh) <= limits.own:
            own = tuple(shard for shard in shards if shard.first_group in fresh)
            return PagedShards(tuple(self.pages[place] for place in kept), own)
        self._merge(kept, fresh, limits, limits.pages_for(len(shards)))
        entries = [shard for shard in shards if shard.first_group in fresh]
        parts = limits.pages_for(len(entries))
        bounds = [len(entries) * part // parts for part in range(parts + 1)]
        contents: list[Sequence[ShardState]] = [
            entries[start:end] for start, end in pairwise(bounds)
        ]
        written = zip(write(contents), map(page_of, contents), strict=True)
        return PagedShards((*(self.pages[place] for place in kept), *written))

    def _carried(self, shards: Sequence[ShardState]) -> tuple[dict[int, list[int]], set[int]]:
        """Return the valid entries of each page that the next epoch can keep, by its place, and
        the shards whose entries are in none of them, all by their first key groups.
        """
        earlier = self.shards
        if [shard.groups for shard in earlier] != [shard.groups for shard in shards]:
            return {}, {shard.first_group for shard in shards}  # another parallelism, or the first
        pairs = zip(earlier, shards, strict=True)
        fresh = {new.first_group for old, new in pairs if old is not new and old != new}
        fresh.update(shard.first_group for shard in self.own)
        seen, kept = set(fresh), dict[int, list[int]]()
        for place in reversed(range(len(self.pages))):
            groups = [group for group in self.pages[place][1] if group not in seen]
            seen.update(groups)
            if groups:
                kept[place] = groups
        return dict(sorted(kept.items())), fresh

    @staticmethod
    def _merge(kept: dict[int, list[int]], fresh: set[int], limits: PageLimits, full: int) -> None:
        """Move entries of the emptiest pages to the fresh ones, until there are few enough pages.

        Parameters:
            full: the number of full pages with room for all shards.
        """
        for place in sorted(kept, key=lambda place: len(kept[place])):
            if len(kept) + limits.pages_for(len(fresh)) <= limits.spread * full:
                return
            fresh.update(kept.pop(place))
