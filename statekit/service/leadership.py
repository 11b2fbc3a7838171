"""Leadership: one of several servers with the same registry starts processes.

Each leader has a term, a file that only one server can create. It renews its term by writing the
file again. Another server may create the next term when the leader has released its term or has
ended, or when it has not renewed the term for as long as the term is valid. No clock is compared
with one of another machine: a server measures itself for how long a term has not changed.

    leader/<term>.json
"""

from __future__ import annotations

import logging
import threading
from typing import ClassVar

from statekit.checkpoint.leases.lease_files import Holder
from statekit.checkpoint.sealed_json import Count, Sealed
from statekit.checkpoint.store import Store
from statekit.clock import stopwatch_s
from statekit.closing import Closing
from statekit.errors import CorruptCheckpointError, FencedError, StatekitError

_logger = logging.getLogger("statekit.service")

_FOLDER = "leader"
_KEPT = 5
"""Number of terms that are kept."""

TERM_S = 15.0
"""How long a term is valid after it was renewed, in seconds."""

_RENEWALS, _ACTS_FOR = 1 / 5, 2 / 3
"""Parts of that time: when a leader renews its term, and for how long it acts without renewal. In
the rest of the time its processes end.
"""

_LOOK_S = 0.5


class LeaderTerm(Sealed):
    """The term of a leader.

    Parameters:
        holder: its process.
        renewals: how often it was renewed.
        is_released: whether the leader has ended, and all processes that it had started.
    """

    title: ClassVar[str] = "the term of a leader"

    holder: Holder
    renewals: Count = 0
    is_released: bool = False


class Leadership(Closing):
    """Takes and renews the term of a leader. `close` releases it.

    Parameters:
        store: of the registry.
        term_s: how long a term is valid, in seconds.

    >>> with Leadership(Store.in_memory()) as leadership:
    ...     leadership.look()
    ...     leadership.is_leader
    True
    """

    def __init__(self, store: Store, term_s: float = TERM_S) -> None:
        self._store, self._term_s = store, term_s
        self._own: tuple[int, LeaderTerm] | None = None
        self._acts_until_s = self._acts_from_s = 0.0
        self._seen: tuple[int, bytes | None] = (-1, None)
        self._seen_s = 0.0
        self._renewed_s = 0.0
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_leader(self) -> bool:
        """True if this server may start processes now."""
        now_s = stopwatch_s()
        return self._own is not None and self._acts_from_s <= now_s < self._acts_until_s

    @property
    def term(self) -> int | None:
        """The number of the term of this server; None if another one is the leader."""
        own = self._own
        return None if own is None else own[0]

    def start(self) -> None:
        """Look again and again in a thread, until it is closed."""
        self._thread = threading.Thread(target=self._run, name="statekit leader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except StatekitError as error:
                _logger.warning("the term of the leader cannot be read or renewed: %s", error)
            if self._ends.wait(min(_LOOK_S, self._term_s * _RENEWALS)):
                return

    def look(self) -> None:
        """Take the term if it is free, or renew it when it is time.

        Raises:
            StorageError: the store cannot be reached.
        """
        if self._own is None:
            self._take()
        elif stopwatch_s() - self._renewed_s >= self._term_s * _RENEWALS:
            self._renew(*self._own)

    def _terms(self) -> list[int]:
        names = (path.rpartition("/")[2] for path in self._store.names(_FOLDER))
        return sorted(int(name[:-5]) for name in names if name[:-5].isdecimal())

    def _take(self) -> None:
        terms = self._terms()
        last = terms[-1] if terms else -1
        if not self._is_free(last):
            return
        began_s, own = stopwatch_s(), LeaderTerm(holder=Holder.of_this_process())
        try:
            self._store.create(_path(last + 1), own.to_bytes())
        except FencedError:
            return
        if self._terms()[-1] != last + 1:
            return  # terms after it had been there, and this number had been removed
        # A leader that has renewed its term since sees the next term at its next renewal.
        has_renewed = last >= 0 and self._content(last) != self._seen[1]
        self._acts_from_s = stopwatch_s() + (self._term_s if has_renewed else 0.0)
        self._note_renewal(began_s)
        self._own = last + 1, own
        for old in terms[:-_KEPT]:
            self._store.remove([_path(old)])
        _logger.info("this server is the leader, in term %d", last + 1)

    def _is_free(self, term: int) -> bool:
        """Return whether the next term may be created."""
        found = term, self._content(term) if term >= 0 else None
        if found != self._seen:
            self._seen, self._seen_s = found, stopwatch_s()
        if found[1] is None:
            return True
        if stopwatch_s() - self._seen_s > self._term_s:
            return True
        try:
            own = LeaderTerm.from_bytes(found[1], self._store.at(_path(term)))
        except CorruptCheckpointError:
            return False  # until it has not changed for as long as a term is valid
        return own.is_released or own.holder.has_ended

    def _content(self, term: int) -> bytes | None:
        return self._store.read_if_there(_path(term))

    def _renew(self, term: int, own: LeaderTerm) -> None:
        began_s = stopwatch_s()
        renewed = own.model_copy(update={"renewals": own.renewals + 1})
        if self._acts_until_s > began_s:
            self._store.replace(_path(term), renewed.to_bytes())
        if self._acts_until_s <= began_s or self._terms()[-1] > term:
            _logger.warning(
                "this server is not the leader any more: its term was not renewed in time, and its "
                "jobs are killed until a server leads again"
            )
            self._own = None
            return
        self._own = term, renewed
        self._note_renewal(began_s)

    def _note_renewal(self, at_s: float) -> None:
        self._renewed_s, self._acts_until_s = at_s, at_s + self._term_s * _ACTS_FOR

    def close(self) -> None:
        """Release the term. Call it when all processes have ended."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._own is not None and self.is_leader:
            term, own = self._own
            released = own.model_copy(update={"is_released": True})
            try:
                self._store.replace(_path(term), released.to_bytes())
            except StatekitError as error:
                _logger.warning("the term of the leader was not released: %s", error)
        self._own = None


def _path(term: int) -> str:
    return f"{_FOLDER}/{term:020d}.json"
