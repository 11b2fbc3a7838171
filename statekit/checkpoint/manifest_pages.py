"""The stored form of manifests: the latest entries of shards, and pages with all others.

A page is a separate file with the entries of some shards of an operator, in any combination, and
never changes. The entries that changed last are in the manifest itself, and count before those in
pages; of the pages, the last one with an entry of a shard counts. If a manifest would have too many
entries, they become a page, which it and the epochs after it reference. So a job with few shards
has no pages.

A page without an entry that counts is no longer referenced. If there are too many pages, those with
the fewest entries that count are merged into the new one. So the cost of an epoch follows the
number of shards that it changed.

Only `Repository` knows this form. Everything else sees an `EpochManifest` with all shards. Pages
are read and written several in parallel. Those of the last epochs that were read or written stay in
memory: the epochs after them share most of these pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from itertools import pairwise
from typing import Annotated, ClassVar, Self, TypeVar

import pyarrow as pa
from pydantic import Field, model_validator

from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.paths import page_path
from statekit.checkpoint.sealed_json import FORMAT, FileRef, Record, Sealed, faults_of
from statekit.checkpoint.shard_layout import blank_shards
from statekit.checkpoint.store import Store, in_parallel
from statekit.clock import unique_id
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


PAGED_FORMAT = 5
"""The format version of a manifest that references pages."""

_FORMAT_OF_PAGES_ALONE = 4
"""That of one with pages and no entries of its own. Earlier versions wrote it."""


class StoredOperator(OperatorEpoch):
    """An operator in an epoch, as it is stored.

    Parameters:
        shards: the entries in the manifest itself. They count before those in pages.
        pages: with all other entries, oldest first.
    """

    shards: tuple[ShardState, ...] = ()
    pages: tuple[PageRef, ...] = Field(default=())

    @model_validator(mode="after")
    def _shards_follow_each_other(self) -> Self:
        return self  # others are in pages


class StoredManifest(EpochManifest):
    """A manifest as it is stored. Without pages its format version is that of all sealed files."""

    formats_read: ClassVar[tuple[int, ...]] = (FORMAT, _FORMAT_OF_PAGES_ALONE, PAGED_FORMAT)

    operators: dict[StoredName, StoredOperator]  # type: ignore[assignment]

    @model_validator(mode="after")
    def _shards_cover_all_groups(self) -> Self:
        return self  # others are in pages

    @classmethod
    def of(cls, manifest: EpochManifest, stored: Mapping[str, PagedShards]) -> EpochManifest:
        """Return the stored form of a manifest, given that of its shards by operator."""
        if not any(shards.pages for shards in stored.values()):
            return manifest
        operators = {
            name: StoredOperator(
                **{**dict(operator), "shards": stored[name].own, "pages": stored[name].refs}
            )
            for name, operator in manifest.operators.items()
        }
        return cls(**{**dict(manifest), "format": PAGED_FORMAT, "operators": operators})

    def assembled(self, shards: Mapping[str, tuple[ShardState, ...]]) -> EpochManifest:
        """Return the manifest with all shards.

        Parameters:
            shards: by operator. Each was verified when it was read.

        Raises:
            ValueError: shards are missing.
        """
        operators = {
            name: OperatorEpoch.model_construct(
                **{field: getattr(operator, field) for field in OperatorEpoch.model_fields}
                | {"shards": shards[name]}
            )
            for name, operator in self.operators.items()
        }
        return EpochManifest(**{**dict(self), "format": FORMAT, "operators": operators})


Paged = Mapping[str, PagedShards]
"""The shards of an epoch in their stored form, by operator."""

S = TypeVar("S")
T = TypeVar("T")

_RECENT = 4
"""The number of epochs whose pages are cached. A run needs one, a reader two."""


class ManifestPages:
    """The pages of the manifests of a checkpoint.

    Attributes:
        limits: of entries in the manifest, and of pages.
    """

    limits = PAGE_LIMITS

    def __init__(self) -> None:
        self._recent: tuple[tuple[int, Paged], ...] = ()
        self._own: tuple[tuple[int, Paged], ...] = ()

    def recent(self, epoch: int) -> Paged | None:
        """Return the cached pages of an epoch; None if they are not cached."""
        return next((paged for number, paged in self._in_memory if number == epoch), None)

    @property
    def _in_memory(self) -> tuple[tuple[int, Paged], ...]:
        return (*self._own, *self._recent)

    def remember(self, epoch: int, paged: Paged, *, is_own: bool = False) -> None:
        """Cache the pages of an epoch.

        Parameters:
            is_own: whether this process has committed it: however many others are read meanwhile,
                it stays until the next commit.
        """
        if is_own:
            self._own = ((epoch, paged),)
            return
        if any(not page for shards in paged.values() for _, page in shards.pages):
            return  # a page was missing, which may be another collector's doing
        others = (entry for entry in self._recent if entry[0] != epoch)
        self._recent = ((epoch, paged), *others)[:_RECENT]

    # ------------------------------------------------------------------------------- reading

    def parsed(
        self, store: Store, path: str, data: bytes, *, gaps: bool = False
    ) -> tuple[EpochManifest, Paged]:
        """Parse a manifest file, and return it with all shards, and these in their stored form.

        Parameters:
            gaps: shards whose entry is in a page that is missing or altered are without files, for
                an epoch that was collected.

        Raises:
            CorruptCheckpointError: the manifest or a page is missing, truncated or altered.
            RestoreError: it was written by a newer version.
        """
        stored = StoredManifest.from_bytes(data, store.at(path))
        paged = {
            name: PagedShards(self._read(store, name, operator.pages, gaps=gaps), operator.shards)
            for name, operator in stored.operators.items()
        }
        shards = {name: of.shards for name, of in paged.items()}
        if gaps:
            shards = {name: _without_gaps(stored, found) for name, found in shards.items()}
        try:
            return stored.assembled(shards), paged
        except ValueError as error:
            raise CorruptCheckpointError(
                f"{store.at(path)} does not fit its pages: {faults_of(error)}. Restore the "
                "manifest and the pages from one backup, or start from an earlier epoch or a "
                "savepoint"
            ) from error

    def _read(
        self, store: Store, operator: str, refs: Sequence[PageRef], *, gaps: bool
    ) -> tuple[tuple[PageRef, Page], ...]:
        """Return pages from the cache, or from the store."""
        known = {
            ref: page
            for _, paged in self._in_memory
            for ref, page in paged.get(operator, PagedShards()).pages
        }
        missing = [ref for ref in refs if ref not in known]
        read = in_parallel(partial(_read_page, store, operator, gaps=gaps), missing)
        known.update(zip(missing, read, strict=True))
        return tuple((ref, known[ref]) for ref in refs)

    # ------------------------------------------------------------------------------- writing

    def has_room(self, manifest: EpochManifest) -> bool:
        """Return whether a manifest needs no pages: it has room for the entries of all shards."""
        return manifest.parallelism <= self.limits.own

    def stored(
        self, store: Store, manifest: EpochManifest, before: Paged
    ) -> tuple[EpochManifest, Paged]:
        """Write the new pages of a manifest. Return its stored form, and that of its shards.

        Parameters:
            before: the shards of the epoch that it follows; empty if it needs no pages.

        Raises:
            StorageError: a page cannot be written.
        """
        paged = {
            name: before.get(name, PagedShards()).followed_by(
                operator.shards, self.limits, partial(_write_pages, store, name)
            )
            for name, operator in manifest.operators.items()
        }
        return StoredManifest.of(manifest, paged), paged


def page_files(paged: Paged) -> Iterator[FileRef]:
    """Yield the references of pages."""
    return (ref.file(name) for name, shards in paged.items() for ref in shards.refs)


def listed_pages(data: bytes, path: str) -> Iterator[FileRef]:
    """Yield the pages that a stored manifest references.

    Parameters:
        data: its content.

    Raises:
        CorruptCheckpointError: it is truncated or altered.
    """
    for name, operator in StoredManifest.from_bytes(data, path).operators.items():
        yield from (ref.file(name) for ref in operator.pages)


def _read_page(store: Store, operator: str, ref: PageRef, *, gaps: bool) -> Page:
    file = ref.file(operator)
    try:
        with store.open_verified(file) as opened:
            page = ShardPage.from_zstd(opened.read(), store.at(file.path))
        if page.operator != operator:
            raise CorruptCheckpointError(
                f"{store.at(file.path)} is a page of operator {page.operator!r}, and operator "
                f"{operator!r} references it: restore the manifest and the pages from one backup"
            )
    except CorruptCheckpointError:
        if not gaps:
            raise
        return {}
    return page_of(page.shards)


def _write_pages(
    store: Store, operator: str, contents: Sequence[Sequence[ShardState]]
) -> list[PageRef]:
    def write(shards: Sequence[ShardState]) -> PageRef:
        id = unique_id()
        page = ShardPage(operator=operator, shards=tuple(shards))
        file = store.put_file(page_path(operator, id), BytesIO(page.to_zstd()))
        return PageRef(id=id, size=file.size, checksum=file.checksum)

    return in_parallel(write, contents)


def _without_gaps(manifest: EpochManifest, shards: Sequence[ShardState]) -> tuple[ShardState, ...]:
    """Return all shards of an operator. A shard without an entry has no files."""
    if len(shards) == manifest.parallelism:
        return tuple(shards)
    entries = page_of(shards)
    blank = blank_shards(manifest.parallelism, manifest.key_groups)
    return tuple(entries.get(shard.first_group, shard) for shard in blank)
