"""Page cursor: the position at which a scan of a state continues, and the scan it belongs to.

A cursor is text: the base64 of JSON. It also has the parts that must be the same in the next
request: the identity of the epoch, the state, the direction and the range.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Self

from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.sealed_json import checksum_of
from statekit.errors import QueryError
from statekit.shown import shown


@dataclass(frozen=True)
class PageCursor:
    """A place in a scan that is read in pages.

    Parameters:
        epoch_id: the identity of the epoch of all pages.
        state: the operator and the state, as `operator.state`.
        reverse: True for a scan from the last key to the first.
        range_sum: the checksum of the range.
        after: the bytes of the last key of the page before; empty for the first page.
    """

    epoch_id: EpochId
    state: str
    reverse: bool
    range_sum: str
    after: bytes = b""

    @classmethod
    def at_start(
        cls, epoch_id: EpochId, state: str, reverse: bool, first: bytes | None, last: bytes | None
    ) -> Self:
        """Return the place before the first page of a scan.

        Parameters:
            first, last: the bytes of the first key, and of the key after the range; None for no
                bound.
        """
        bounds = [None if bound is None else bound.hex() for bound in (first, last)]
        return cls(epoch_id, state, reverse, checksum_of(json.dumps(bounds).encode())[:16])

    def text_after(self, key: bytes) -> str:
        """Return the cursor after a key of the scan, as text for users."""
        place = {
            "epoch": str(self.epoch_id),
            "after": key.hex(),
            "state": self.state,
            "reverse": self.reverse,
            "range": self.range_sum,
        }
        return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()

    @classmethod
    def of_text(cls, cursor: str) -> Self:
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
        return cls(epoch_id, *parts, after)

    def check(self, scan: PageCursor) -> None:
        """Check that the cursor belongs to a scan.

        Raises:
            QueryError: it has another epoch, state, direction or range.
        """
        epoch = self.epoch_id.epoch
        if epoch != scan.epoch_id.epoch:
            raise QueryError(
                f"the cursor is of epoch {epoch}, and this view of epoch {scan.epoch_id.epoch}: "
                f"read on from a view of epoch {epoch}, with replica.at({epoch}), or begin again"
            )
        if self.epoch_id != scan.epoch_id:
            raise QueryError(
                f"the cursor is of another epoch {epoch}: the checkpoint was replaced since, such "
                "as by a backup. Begin again without a cursor"
            )
        if self.state != scan.state:
            fault = f"of state {shown(self.state)}, and not of {scan.state!r}"
        elif self.reverse != scan.reverse:
            fault = (
                f"of a scan with reverse={self.reverse}, and this one has reverse={scan.reverse}"
            )
        elif self.range_sum != scan.range_sum:
            fault = "of a scan with another start or end, prefix or closed= than this one"
        else:
            return
        raise QueryError(
            f"the cursor is {fault}. Pass what the page before was asked with, or begin again "
            "without a cursor"
        )
