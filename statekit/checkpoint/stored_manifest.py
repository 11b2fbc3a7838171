"""The stored form of a manifest: the latest entries of shards, and references to pages with others.

Only `Repository` knows this form. Everything else sees an `EpochManifest` with all shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.sealed_json import FORMAT
from statekit.checkpoint.shard_pages import PagedShards, PageRef
from statekit.names import StoredName

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
