"""The stored form of a manifest of a job with many shards: it references pages.

Only `Repository` knows this form. Everything else sees an `EpochManifest` with all shards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.sealed_json import FORMAT
from statekit.checkpoint.shard_pages import PagedShards, PageRef
from statekit.names import StoredName

PAGED_FORMAT = 4
"""The format version of a manifest with pages."""

_FORMAT = re.compile(rb'\{"format":([0-9]{1,9}),')


class PagedOperator(OperatorEpoch):
    """An operator in an epoch, without the entries of its shards.

    Parameters:
        pages: with these entries, oldest first.
    """

    shards: tuple[ShardState, ...] = Field(default=(), exclude=True, max_length=0)
    pages: Annotated[tuple[PageRef, ...], Field(min_length=1)]


class PagedManifest(EpochManifest):
    """A manifest without the entries of shards, of format version 4."""

    format_read: ClassVar[int] = PAGED_FORMAT

    operators: dict[StoredName, PagedOperator]  # type: ignore[assignment]

    @model_validator(mode="after")
    def _shards_cover_all_groups(self) -> Self:
        return self  # the entries are in pages

    @classmethod
    def of(cls, manifest: EpochManifest, paged: Mapping[str, PagedShards]) -> Self:
        """Return the stored form of a manifest, given the pages of each operator."""
        operators = {
            name: PagedOperator(**{**dict(operator), "shards": (), "pages": paged[name].refs})
            for name, operator in manifest.operators.items()
        }
        return cls(**{**dict(manifest), "format": PAGED_FORMAT, "operators": operators})

    def assembled(self, shards: Mapping[str, tuple[ShardState, ...]]) -> EpochManifest:
        """Return the manifest with all shards.

        Parameters:
            shards: by operator. Each was verified when its page was read.

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


def is_paged(data: bytes) -> bool:
    """Return whether a stored manifest references pages, or has a later format.

    >>> is_paged(b'{"format":4,'), is_paged(b'{"format":3,')
    (True, False)
    """
    match = _FORMAT.match(data)
    return match is not None and int(match[1]) >= PAGED_FORMAT
