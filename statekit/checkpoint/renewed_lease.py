"""Renewed lease: a reader's lease that a thread renews while the reader is busy."""

from __future__ import annotations

import threading
import weakref

from statekit.checkpoint.leases import ReaderLease
from statekit.errors import QueryError, StatekitError

_RENEWALS_PER_TTL = 3


class RenewedLease:
    """A lease that is renewed in the background, until it is stopped or this object is garbage
    collected.

    Parameters:
        lease: as it was taken. From now on only this object uses it.

    Attributes:
        epoch: the epoch that the reader has consumed up to.
    """

    def __init__(self, lease: ReaderLease) -> None:
        self._lease = lease
        self._renewal = _Renewal(lease)
        self._thread = threading.Thread(target=self._renewal.run, name="lease", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._renewal.ended.set)

    @property
    def epoch(self) -> int:
        """The epoch up to which the reader has consumed."""
        return self._lease.epoch

    def check(self) -> None:
        """Raise the error of the last renewal, if it failed.

        Raises:
            FencedError: another run of the reader has taken the lease over.
        """
        if self._renewal.error is not None:
            raise self._renewal.error

    def commit(self, epoch: int) -> None:
        """Move the lease forward, as `ReaderLease.commit` does."""
        self.check()
        with self._renewal.lock:
            self._lease.commit(epoch)

    def stop(self) -> None:
        """End the renewal. The lease stays valid until it expires."""
        self._renewal.ended.set()
        self._thread.join()

    def release(self) -> None:
        """End the renewal and this run of the reader, as `ReaderLease.release` does."""
        self.stop()
        self._lease.release()


class _Renewal:
    """The state and the loop of the renewal thread. It does not keep the `RenewedLease` alive."""

    def __init__(self, lease: ReaderLease) -> None:
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.error: StatekitError | None = None
        self._lease = lease

    def run(self) -> None:
        """Renew the lease until the end."""
        while not self.ended.wait(self._lease.ttl_s / _RENEWALS_PER_TTL):
            try:
                with self.lock:
                    self._lease.renew()
            except (OSError, QueryError):
                # The next renewal is due before the lease expires; or its epoch was collected, and
                # the reader may be about to commit a later one.
                continue
            except StatekitError as error:
                self.error = error
                return
