"""Undo log: takes back what a failed call of the user's function has changed.

Only functions declared with `on_error="collect"` or `"drop"` have one. Three kinds of changes are
taken back:

- The dicts of states and timers are `UndoDict`s, which log the earlier value of each entry that is
  replaced or removed.
- Numbers and lists are noted when a call begins: numbers by value, lists by their length, because a
  call only appends to them.
- The batch is cut to its length when the call began.

The changes of one call stay in memory until it ends, as a row in the backend could not be taken
back. A state that would write its rows to the backend does that after the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from statekit.backend.mutation import Batch

K = TypeVar("K")
V = TypeVar("V")

_ABSENT: Any = object()


class Noted(NamedTuple):
    """A part of a shard that is noted at the beginning of each call.

    Parameters:
        note: returns what `restore` needs.
        restore: takes back the changes since.
    """

    note: Callable[[], Any]
    restore: Callable[[Any], None]


class UndoLog:
    """The log of one call at a time.

    Attributes:
        is_running: whether a call is running whose changes may be taken back.
    """

    def __init__(self) -> None:
        self.is_running = False
        self._entries: list[tuple[Any, ...]] = []
        self._parts: list[Noted] = []
        self._notes: list[Any] = []
        self._deferred: list[Callable[[], None]] = []

    def note(self, note: Callable[[], Any], restore: Callable[[Any], None]) -> None:
        """Note a part of the shard at the beginning of each call, and restore it after a failed
        one.
        """
        self._parts.append(Noted(note, restore))

    def note_attributes(self, owner: object, names: tuple[str, ...]) -> None:
        """Note attributes of an object. Their values are replaced, and never changed in place."""
        read = attrgetter(*names)

        def restore(values: Any) -> None:
            for name, value in zip(names, values if len(names) > 1 else (values,), strict=True):
                setattr(owner, name, value)

        self.note(lambda: read(owner), restore)

    def note_list(self, items: list[Any]) -> None:
        """Note the length of a list to which a call only appends."""
        self.note(lambda: len(items), lambda length: _cut(items, length))

    def note_batch(self, batch: Batch) -> None:
        """Note the length of a batch."""
        self.note(lambda: (len(batch), batch.size_bytes), lambda noted: batch.cut(*noted))

    def begin(self) -> None:
        """Begin a call."""
        self._entries.clear()
        self._notes = [part.note() for part in self._parts]
        self.is_running = True

    def end(self) -> None:
        """Keep the changes of the call."""
        self.is_running = False
        if self._deferred:
            deferred, self._deferred = self._deferred, []
            for spill in deferred:
                spill()

    def undo(self) -> None:
        """Take back the changes of the call."""
        for change, *arguments in reversed(self._entries):
            change(*arguments)
        self._entries.clear()
        for part, noted in zip(self._parts, self._notes, strict=True):
            part.restore(noted)
        self._deferred.clear()
        self.is_running = False

    def add(self, *change: Any) -> None:
        """Log a function, and its arguments, that takes back a change."""
        self._entries.append(change)

    def defers(self, spill: Callable[[], None]) -> bool:
        """Return whether a call is running. Then a function that writes rows to the backend is
        called after it.
        """
        if self.is_running and spill not in self._deferred:
            self._deferred.append(spill)
        return self.is_running


class UndoDict(dict[K, V]):
    """A dict that logs how to take back each change of an entry.

    `clear` is not logged: only flushes call it, between calls of the user's function.

    >>> log = UndoLog()
    >>> counts = UndoDict(log)
    >>> counts["a"] = 1
    >>> log.begin()
    >>> counts["a"], counts["b"] = 5, 6
    >>> counts.pop("a")
    5
    >>> log.undo()
    >>> counts
    {'a': 1}
    """

    __slots__ = ("_log",)

    def __init__(self, log: UndoLog, entries: Iterable[tuple[K, V]] = ()) -> None:
        super().__init__(entries)
        self._log = log

    def __setitem__(self, key: K, value: V) -> None:
        self._note(key)
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: K) -> None:
        self._note(key)
        dict.__delitem__(self, key)

    def pop(self, key: K, *default: Any) -> Any:
        self._note(key)
        return dict.pop(self, key, *default)

    def _note(self, key: K) -> None:
        before = dict.get(self, key, _ABSENT)
        if before is _ABSENT:
            self._log.add(dict.pop, self, key, None)
        else:
            self._log.add(dict.__setitem__, self, key, before)


def _cut(items: list[Any], length: int) -> None:
    del items[length:]
