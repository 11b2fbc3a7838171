"""Page cursor: the position at which a scan of a state continues, and the scan it belongs to.

A cursor is text: the base64 of JSON. It also has the parts that must be the same in the next
request: the identity of the epoch, the state, the direction and the range.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.sealed_json import checksum_of
from statekit.errors import QueryError
from statekit.shown import shown


@dataclass(frozen=True)
class PageScan:
    """A scan that is read in pages.

    Parameters:
        state: the operator and the state, as `operator.state`.
        reverse: True for a scan from the last key to the first.
        first, last: the bytes of the first key, and of the key after the range; None for no bound.
    """

    state: str
    reverse: bool
    first: bytes | None
    last: bytes | None

    @property
    def range_sum(self) -> str:
        """Checksum of the range."""
        bounds = [None if bound is None else bound.hex() for bound in (self.first, self.last)]
        return checksum_of(json.dumps(bounds).encode())[:16]


@dataclass(frozen=True)
class PageCursor:
    """The position at which a scan continues.

    Parameters:
        epoch_id: the identity of the epoch of all pages.
        after: the bytes of the last key of the page before.
        state, reverse, range_sum: of the scan.
    """

    epoch_id: EpochId
    after: bytes
    state: str
    reverse: bool
    range_sum: str

    @classmethod
    def of(cls, scan: PageScan, epoch_id: EpochId, after: bytes) -> PageCursor:
        """Return the cursor after a key of a scan."""
        return cls(epoch_id, after, scan.state, scan.reverse, scan.range_sum)

    @property
    def text(self) -> str:
        """The cursor as text, for users."""
        place = {
            "epoch": str(self.epoch_id),
            "after": self.after.hex(),
            "state": self.state,
            "reverse": self.reverse,
            "range": self.range_sum,
        }
        return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()

    @classmethod
    def of_text(cls, cursor: str) -> PageCursor:
        """Return the cursor of a text that a user passes.

        Raises:
            QueryError: it is not a cursor.
        """
        try:
            given = json.loads(base64.urlsafe_b64decode(cursor))
            epoch_id, after = EpochId.of_text(given["epoch"]), bytes.fromhex(given["after"])
            parts = given["state"], given["reverse"], given["range"]
            if epoch_id is None or list(map(type, parts)) != [str, bool, str]:
                raise ValueError("it lacks a part")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise QueryError(
                f"cursor {shown(cursor, 100)} is not valid: pass the cursor of a page unchanged"
            ) from error
        return cls(epoch_id, after, *parts)

    def check(self, scan: PageScan) -> None:
        """Check that the cursor belongs to a scan.

        Raises:
            QueryError: it has another state, direction or range.
        """
        advice = "Pass what the page before was asked with, or begin again without a cursor"
        if self.state != scan.state:
            raise QueryError(
                f"the cursor is of state {shown(self.state)}, and not of {scan.state!r}. {advice}"
            )
        if self.reverse != scan.reverse:
            raise QueryError(
                f"the cursor is of a scan with reverse={self.reverse}, and this one has "
                f"reverse={scan.reverse}. {advice}"
            )
        if self.range_sum != scan.range_sum:
            raise QueryError(
                "the cursor is of a scan with another start or end than this one. " + advice
            )
