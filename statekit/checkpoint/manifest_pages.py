"""Read and write manifests in their stored form, and their pages, several in parallel.

The pages of the last epochs that were read or written stay in memory: the epochs after them share
most of these pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from typing import TypeVar

from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.paths import page_path
from statekit.checkpoint.sealed_json import FileRef, faults_of
from statekit.checkpoint.shard_pages import (
    PAGE_LIMITS,
    Page,
    PagedShards,
    PageRef,
    ShardPage,
    page_of,
)
from statekit.checkpoint.store import TRANSFERS, Store
from statekit.checkpoint.stored_manifest import StoredManifest
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError
from statekit.keygroup import group_range

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
        read = _in_parallel(partial(_read_page, store, operator, gaps=gaps), missing)
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

    return _in_parallel(write, contents)


def _in_parallel(transfer: Callable[[S], T], files: Sequence[S]) -> list[T]:
    """Run file transfers in parallel, and return their results."""
    if len(files) < 2:
        return [transfer(file) for file in files]
    with ThreadPoolExecutor(min(TRANSFERS, len(files))) as threads:
        return list(threads.map(transfer, files))


def _without_gaps(manifest: EpochManifest, shards: Sequence[ShardState]) -> tuple[ShardState, ...]:
    """Return all shards of an operator. A shard without an entry has no files."""
    if len(shards) == manifest.parallelism:
        return tuple(shards)
    entries = page_of(shards)
    parallelism, groups = manifest.parallelism, manifest.key_groups
    ranges = (group_range(shard, parallelism, groups) for shard in range(parallelism))
    return tuple(
        entries[first] if first in entries else ShardState(first_group=first, last_group=last)
        for first, last in ranges
    )
