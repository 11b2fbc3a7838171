"""How far a run has read its iterables."""

from __future__ import annotations

from statekit.checkpoint.manifest import EpochManifest


def records_read(manifest: EpochManifest | None, name: str) -> int:
    """The number of records of an iterable that are in the state."""
    offset = 0 if manifest is None else manifest.offsets.get(name, 0)
    assert isinstance(offset, int)
    return offset
