"""Closing: base class of objects that have to be closed, also by a `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """An object with a `close` method, which the end of a `with` block calls."""

    def close(self) -> None:
        """Release all resources. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
