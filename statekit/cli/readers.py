"""Tables of the readers of a checkpoint, which have leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from statekit.checkpoint.gc.readers import Reader, Readers
from statekit.cli.tables import print_table, range_text, say


def print_readers(readers: Readers, *, otherwise: str) -> None:
    """Print the readers of a checkpoint, with the epochs that each keeps and the size of these.

    Parameters:
        otherwise: the epochs that are kept without readers, such as "the last 10 epochs".
    """
    for file in readers.unreadable:
        is_foreign = file.error is None
        say(f"{file.path!r:.300} is no lease of a reader" if is_foreign else str(file.error))
    if not readers.readers:
        return
    is_measured = readers.readers[0].extra is not None
    title = "readers" + (f"; files and bytes beyond {otherwise}" if is_measured else "")
    print_table(
        ("files", "bytes") if is_measured else (),
        map(_cells, readers.readers),
        texts=("reader", "keeps", "who"),
        title=title,
    )


def _cells(reader: Reader) -> Sequence[str | Text]:
    lease, extra = reader.lease.lease, reader.extra
    sizes = () if extra is None else (f"{extra.files:,}", f"{extra.bytes:,}")
    who = f"free, was {lease.holder}" if lease.released else str(lease.holder)
    return (lease.name, Text(_keeps(reader)), Text(who), *sizes)


def _keeps(reader: Reader) -> str:
    lease = reader.lease
    until = f"{lease.until:%Y-%m-%d %H:%M:%S} UTC"
    if reader.status == "valid":
        return f"epochs {range_text((lease.lease.epoch, reader.last))} until {until}"
    why = {
        "expired": f"is not kept since {until}, when the lease expired",
        "collected": "was collected",
        "too far behind": "is beyond the bound of the retention",
    }[reader.status]
    return f"nothing: epoch {lease.lease.epoch} {why}"


def readers_as_data(readers: Readers) -> dict[str, Any]:
    """Return the readers as JSON-able data."""
    return {
        "readers": [
            {
                "name": reader.lease.lease.name,
                "epoch": reader.lease.lease.epoch,
                "status": reader.status,
                "until": reader.lease.until.isoformat(),
                "host": reader.lease.lease.holder.host,
                "process": reader.lease.lease.holder.process,
                "released": reader.lease.lease.released,
                "extra": reader.extra and asdict(reader.extra),
            }
            for reader in readers.readers
        ],
        "unreadable_leases": [file.path for file in readers.unreadable],
    }
