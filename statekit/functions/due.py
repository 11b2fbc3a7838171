"""Due state: the argument of functions that fire many keys at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from statekit.codec.key_codec import KeyCodec


class Due(NamedTuple):
    """The part of a shard's state in which something is due.

    Parameters:
        groups: first and last key group.
        now_us: the watermark.
        key_codec: of the keys.
        wakes_at: notes the event time of what is due next.
        at_key: notes the key that an error is about: its prefix in row keys, and the key.
    """

    groups: tuple[int, int]
    now_us: int
    key_codec: KeyCodec[Any]
    wakes_at: Callable[[int], None]
    at_key: Callable[[bytes, Any], None]
