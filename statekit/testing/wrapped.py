"""Base of backends that forward every call to another backend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from statekit.backend.interface import Backend, FirstKey, NextKeys, RowReads, Rows, StateSize


class WrappedBackend:
    """A backend that forwards every call. Its prepared readers use `get`, `get_many` and `scan`.

    Parameters:
        inner: the backend with the rows.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def states(self) -> Sequence[str]:
        return self.inner.states

    def get(self, state: str, key: bytes) -> bytes | None:
        return self.inner.get(state, key)

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(state, key) for key in keys]

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        return self.inner.scan(state, start, end, reverse=reverse)

    def reader(
        self, state: str, next_keys: NextKeys | None = None, first_key: FirstKey | None = None
    ) -> RowReads:
        return RowReads(
            partial(self.get, state), partial(self.get_many, state), partial(self.scan, state)
        )

    def sizes(self) -> dict[str, StateSize]:
        return self.inner.sizes()

    def close(self) -> None:
        self.inner.close()
