# Only what statekit uses; the package ships no types.
from collections.abc import Iterator
from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")

class SortedDict(dict[_K, _V]):
    def irange(
        self,
        minimum: _K | None = ...,
        maximum: _K | None = ...,
        inclusive: tuple[bool, bool] = ...,
        reverse: bool = ...,
    ) -> Iterator[_K]: ...
