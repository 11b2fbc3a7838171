"""`sinks.writer`: any format that a DataFrame can be written to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from statekit.sinks.sink import Attempt, Sink


@dataclass(frozen=True)
class Writer(Sink):
    """Any DataFrame writer format. See `writer`."""

    format: str
    mode: str = "append"
    options: dict[str, str] = field(default_factory=dict)

    @property
    def may_duplicate(self) -> bool:
        return self.format != "noop"

    def write(self, df: Any, attempt: Attempt) -> None:
        df.write.format(self.format).mode(self.mode).options(**self.options).save()


def writer(format: str, *, mode: str = "append", **options: object) -> Writer:
    """Return a sink for any DataFrame writer format.

    Exactly-once depends on the format: appending again after a crash between the sink and the
    commit writes an epoch again.

    >>> writer("noop")
    Writer(format='noop', mode='append', options={})
    """
    return Writer(format, mode, {name: str(value) for name, value in options.items()})
