"""Export of a state in a process of its own.

An export reads all rows of a state, which would slow down a process that serves requests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from statekit.checkpoint.epoch_id import EpochId
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.child_process import ChildWork, ForkServer, run_child
from statekit.query.tables.export import Format, export
from statekit.query.tables.read import StateTable, WideIntError, WideInts


class ExportRequest(msgspec.Struct, frozen=True):
    """Request to export the rows of a state.

    Parameters:
        wide_ints: as for `statekit.read`.
        into: the file; one that exists is replaced.
    """

    checkpoint: str
    epoch: int | EpochId
    operator: str
    state: str
    wide_ints: WideInts
    to: Format
    into: str

    def carry_out(self) -> None:
        """Write the file, in this process.

        Raises:
            WideIntError: an int is too large for its column.
            QueryError: there is no such state or epoch.
            StatekitError: the checkpoint cannot be read, or the file cannot be written.
        """
        reader = CheckpointReader(self.checkpoint, epoch=self.epoch)
        rows = StateTable(reader, self.operator, self.state)
        export(rows.reader(wide_ints=self.wide_ints), Path(self.into), self.to, overwrite=True)

    def carry_out_in(
        self, forks: ForkServer, *, timeout_s: float, is_unwanted: Callable[[], bool], below: Path
    ) -> None:
        """Write the file in a process of its own.

        Parameters:
            forks: forks the process.
            timeout_s: the longest time, in seconds.
            is_unwanted: asked while the process runs; it is ended once nobody wants the file.
            below: where the directory for the files of the process is created.

        Raises:
            ChildLimitError: it takes too long.
            StatekitError: as for `carry_out`.
        """
        too_wide = run_child(
            __name__,
            self,
            "export",
            timeout_s=timeout_s,
            is_unwanted=is_unwanted,
            below=below,
            forks=forks,
        )
        if too_wide:
            raise WideIntError(too_wide.decode())


def _answer(request: ExportRequest, _: Path) -> bytes:
    """Write the file. Return the message of a `WideIntError`; empty if there is none."""
    try:
        request.carry_out()
    except WideIntError as error:
        return str(error).encode()
    return b""


CHILD_WORK = ChildWork(ExportRequest, _answer)
