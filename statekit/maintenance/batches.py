"""Rows in batches, and batches as change files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from statekit.backend.change_file import Changes
from statekit.backend.mutation import Batch
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef


def in_batches(rows: Iterable[tuple[str, bytes, bytes]]) -> Iterator[Batch]:
    """Yield rows in batches. A batch is valid until the next one is requested.

    Parameters:
        rows: family, row key, row.
    """
    batch = Batch()
    for row in rows:
        batch.put(*row)
        if batch.full:
            yield batch
            batch.clear()
    if len(batch):
        yield batch


def store_batches(
    repository: Repository,
    operator: str,
    families: Sequence[str],
    batches: Iterable[Batch],
    *,
    local: bool,
) -> FileRef | None:
    """Store batches as one change file. Return None if there are no mutations.

    Parameters:
        families: all families that the batches may have mutations of.
        local: whether it contains operator state.
    """
    changes = Changes(tuple(families))
    try:
        for batch in batches:
            changes.append(batch)
        finished = changes.finish()
        if finished is None:
            return None
        return repository.put_changes(operator, *finished, local=local)
    finally:
        changes.drop()
