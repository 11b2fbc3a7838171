"""The outputs of `async` process functions."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from statekit.calls.event_loops import event_loop


async def emitted(result: Any, copy: Callable[[Any], Any] | None = None) -> list[Any]:
    """Return the outputs of a call of an `async` function.

    Parameters:
        result: of the call: an awaitable of an iterable or None, or an asynchronous iterator.
        copy: copies an output when it is emitted; None for outputs that cannot change.
    """
    if isinstance(result, AsyncIterable):
        return [output if copy is None else copy(output) async for output in result]
    outputs: Iterable[Any] | None = await result
    if outputs is None:
        return []
    return list(outputs if copy is None else map(copy, outputs))


def one_by_one(fn: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return an ordinary function that calls an `async` one and waits for its outputs."""
    return lambda *arguments: event_loop().run(emitted(fn(*arguments)))
