"""Pages: separate files with the entries of an operator's shards.

The manifest of a job with many shards references pages, and has no entries itself. A page has the
entries of some shards, in any combination, and never changes. The last page with an entry of a
shard counts. So an epoch writes a page with the entries that changed, and references the pages of
the epoch before it.

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
    """The thresholds for pages, and the limits of their size and number.

    Parameters:
        unpaged: the largest number of shards whose entries are in the manifest itself.
        entries: the largest number of entries in a page.
        spread: how many times as many pages there may be as full ones have room for all shards.
    """

    unpaged: int = 256
    entries: int = 256
    spread: int = 4

    def pages_for(self, entries: int) -> int:
        """Return the number of full pages for a number of entries."""
        return -(-entries // self.entries)


PAGE_LIMITS = PageLimits()
"""The default limits. With 10,000 shards a manifest has at most 160 references, of about 100 bytes
each.
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
    """The shards of an operator after an epoch, in pages.

    Parameters:
        pages: with their references, oldest first.
    """

    pages: tuple[tuple[PageRef, Page], ...] = ()

    @cached_property
    def shards(self) -> tuple[ShardState, ...]:
        """The valid entries, in key group order."""
        latest: dict[int, ShardState] = {}
        for _, page in self.pages:
            latest.update(page)
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
        """Write the new pages of the next epoch, and return all of its pages.

        Parameters:
            shards: all shards after that epoch, in key group order.
            write: stores the entries of new pages, and returns their references.
        """
        rewrite = self._rewrite(shards, limits)
        if not rewrite.entries:
            return PagedShards(rewrite.kept)
        parts = limits.pages_for(len(rewrite.entries))
        bounds = [len(rewrite.entries) * part // parts for part in range(parts + 1)]
        contents: list[Sequence[ShardState]] = [
            rewrite.entries[start:end] for start, end in pairwise(bounds)
        ]
        written = zip(write(contents), map(page_of, contents), strict=True)
        return PagedShards((*rewrite.kept, *written))

    def _rewrite(self, shards: Sequence[ShardState], limits: PageLimits) -> _Rewrite:
        """Return the pages to keep, and the entries of new pages."""
        earlier = self.shards
        if [shard.groups for shard in earlier] != [shard.groups for shard in shards]:
            return _Rewrite((), list(shards))  # another parallelism, or no pages so far
        pairs = zip(earlier, shards, strict=True)
        changed = {new.first_group for old, new in pairs if old is not new and old != new}
        live = self._live(changed)
        kept = {place: groups for place, groups in enumerate(live) if groups}
        rewritten = set(changed)
        for place in sorted(kept, key=lambda place: len(kept[place])):
            new_pages = limits.pages_for(len(rewritten))
            if len(kept) + new_pages <= limits.spread * limits.pages_for(len(shards)):
                break
            rewritten.update(kept.pop(place))
        entries = [shard for shard in shards if shard.first_group in rewritten]
        return _Rewrite(tuple(self.pages[place] for place in sorted(kept)), entries)

    def _live(self, changed: set[int]) -> list[list[int]]:
        """Return the shards whose entry in each page is still valid, by their first key groups.

        Parameters:
            changed: shards with a new entry.
        """
        seen, live = set(changed), []
        for _, page in reversed(self.pages):
            groups = [group for group in page if group not in seen]
            seen.update(groups)
            live.append(groups)
        return live[::-1]


@dataclass(frozen=True)
class _Rewrite:
    """The pages that an epoch keeps and the entries that it writes.

    Parameters:
        kept: the pages that stay.
        entries: of new pages.
    """

    kept: tuple[tuple[PageRef, Page], ...]
    entries: list[ShardState]
