"""Load the rows of a committed epoch into a backend."""

from __future__ import annotations

from statekit.backend.interface import Backend
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import apply_plan, restore_plan


def load(
    repository: Repository,
    backend: Backend,
    operator: str,
    first: int,
    last: int,
    epoch: int | None,
) -> None:
    """Load the rows of some key groups after an epoch into an empty backend."""
    if epoch is not None:
        manifest = repository.manifest(epoch)
        apply_plan(repository, backend, restore_plan(repository, manifest, operator, first, last))
