"""Mutations as named tuples, which tests compare and match."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from statekit.backend.change_file import Changes
from statekit.backend.mutation import DELETE, DELETE_RANGE, PUT, Batch


class Put(NamedTuple):
    """Set the row at `key` to `value`."""

    state: str
    key: bytes
    value: bytes


class Delete(NamedTuple):
    """Remove the row at `key`, if it exists."""

    state: str
    key: bytes


class DeleteRange(NamedTuple):
    """Remove every row with `start <= key < end`."""

    state: str
    start: bytes
    end: bytes


Mutation = Put | Delete | DeleteRange
_OPS: dict[type[Mutation], int] = {Put: PUT, Delete: DELETE, DeleteRange: DELETE_RANGE}


def batch_of(mutations: Iterable[Mutation]) -> Batch:
    """Return a batch of these mutations, in their order."""
    rows = []
    for mutation in mutations:
        state, key, *value = mutation
        rows.append((state, _OPS[type(mutation)], key, value[0] if value else None))
    return Batch(rows)


def mutations_of(batch: Batch) -> list[Mutation]:
    """Return the mutations of a batch, in their order."""
    found: list[Mutation] = []
    for state, op, key, value in batch.rows():
        if op == DELETE or value is None:
            found.append(Delete(state, key))
        else:
            found.append((Put if op == PUT else DeleteRange)(state, key, value))
    return found


def written(states: Iterable[str], *batches: Batch) -> bytes:
    """Return a change file of these batches, which have at least one mutation."""
    changes = Changes(tuple(states))
    for batch in batches:
        changes.append(batch)
    finished = changes.finish()
    assert finished is not None
    with finished[0] as file:
        file.seek(0)
        return file.read()
