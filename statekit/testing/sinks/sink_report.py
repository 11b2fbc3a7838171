"""Message about a sink whose records differ from those written to it."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from statekit.testing.sinks.sink_job import Failure, KillPoint

Equal = Callable[[Any, Any], bool]

_SHOWN_MAX = 6  # records
_WIDTH = 60  # of a record
_LINE = 100

_REPLACE = (
    "make the effect depend on the epoch's number: in one step, replace what is there under this "
    "number. For example, write a file that is named after the epoch and rename it from a draft, "
    "or delete and insert the rows of the epoch in one transaction"
)
_KEEP = (
    "write all records of an epoch to where they stay before the sink returns, and remove nothing "
    "of other epochs: an epoch that is committed does not run again. If the sink notes which "
    "epochs it has written, the note and the records have to be written in one step"
)
_START = (
    "the job has to start at whatever the killed process has left: allow for files, tables and "
    "rows that are there already, and replace those of the epoch"
)
_CORRECT = (
    "correct this first. A function as a sink gets a list of records: for one that takes a "
    "DataFrame, return sk.sinks.callback(fn). make() is called by each start and to read, so it "
    "has to allow for what is there already"
)
_READ = (
    "read() has to return the records as they were given: of the same class, or give equal= a "
    "function that compares one that was given with one that was read"
)


@dataclass(frozen=True)
class Outcome:
    """Result of a job that was killed, started again, and has ended.

    Parameters:
        given: the records that the job wrote.
        epoch_size: the number of records in an epoch.
        kills: the moments of the kills, one for each start but the last.
        left: the records that are left in the sink.
        failure: the error that stopped the last start, or reading; None if there was none.
    """

    given: list[Any]
    epoch_size: int
    kills: list[KillPoint]
    left: list[Any]
    failure: Failure | None = None

    def is_right(self, equal: Equal) -> bool:
        """Return whether the sink has each record as often as it was given."""
        return self.failure is None and not any(differing(self.given, self.left, equal))


def differing(given: list[Any], left: list[Any], equal: Equal) -> tuple[list[Any], list[Any]]:
    """Return the records that are missing, and those that occur too often."""
    missing, surplus = list(given), []
    for record in left:
        place = next((n for n, each in enumerate(missing) if equal(each, record)), None)
        if place is None:
            surplus.append(record)
        else:
            del missing[place]
    return missing, surplus


def explained_outcome(name: str, outcome: Outcome, equal: Equal) -> str:
    """Return the message about an outcome that is wrong.

    Parameters:
        name: the name of the sink.
    """
    missing, surplus = differing(outcome.given, outcome.left, equal)
    twice = [each for each in surplus if any(equal(one, each) for one in outcome.given)]
    if outcome.failure is not None:
        means, advice = "it fails", _START if outcome.kills else _CORRECT
        shown = list(_failure(outcome.failure))
    else:
        means, advice = _meaning(missing=bool(missing), twice=bool(twice), surplus=bool(surplus))
        shown = list(_table(outcome, missing, surplus, equal))
    if not outcome.kills:
        first = f"{name}: without any crash, {means}."
    else:
        first = f"{name}: an epoch that runs again does not leave one copy. After a crash, {means}."
    lines = [*wrap(first, _LINE), "", *_kills(outcome.kills), *shown, ""]
    return "\n".join([*lines, *wrap(f"What to do: {advice}.", _LINE)])


def _meaning(*, missing: bool, twice: bool, surplus: bool) -> tuple[str, str]:
    """Return the consequence for readers of the output, and the advice."""
    if twice:
        lacks = ", and others are missing" if missing else ""
        return f"records are there twice{lacks}", _REPLACE
    if surplus:
        return "records are there that are not those that were given", _READ
    return "records are missing", _KEEP


def _kills(kills: Sequence[KillPoint]) -> Iterator[str]:
    """Yield lines about each kill, and about the restart after the last one."""
    for number, kill in enumerate(kills):
        again = "again " if number else ""
        match kill.moment:
            case "line":
                yield f"The process was {again}killed in epoch {kill.epoch}, before this line:"
                yield from _source(kill.file, kill.line)
            case "written":
                yield (
                    f"The process was {again}killed in epoch {kill.epoch}, after the sink had "
                    "returned and before the commit."
                )
            case "committed":
                yield (
                    f"The process was {again}killed after the commit of epoch {kill.epoch}, which "
                    "does not run again."
                )
    if kills:
        if kills[-1].moment == "committed":
            yield "The job was started again and went on to its end."
        else:
            yield (
                f"The job was started again. It runs epoch {kills[-1].epoch} again, under the same "
                "number, and goes on to its end."
            )
        yield ""


def _source(file: str, line: int) -> Iterator[str]:
    text = linecache.getline(file, line).strip()
    yield f"  {Path(file).name}:{line}{': ' if text else ''}{text}"


def _failure(failure: Failure) -> Iterator[str]:
    yield "It fails with:"
    yield f"  {failure.text}"
    if failure.file:
        yield from _source(failure.file, failure.line)


def _table(outcome: Outcome, missing: list[Any], surplus: list[Any], equal: Equal) -> Iterator[str]:
    """Yield the lines of a table of the records that do not occur as often as they were given."""
    distinct: list[Any] = []
    for record in [*missing, *surplus]:
        if not any(equal(each, record) for each in distinct):
            distinct.append(record)
    rows = [("record", "epoch", "given", "left")]
    for record in distinct[:_SHOWN_MAX]:
        places = [n for n, each in enumerate(outcome.given) if equal(each, record)]
        epoch = str(places[0] // outcome.epoch_size) if places else "-"
        times = sum(1 for each in outcome.left if equal(record, each))
        rows.append((_short(record), epoch, str(len(places)), str(times)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield ("  " + "  ".join(f"{cell:<{width}}" for cell, width in cells)).rstrip()
    if len(distinct) > _SHOWN_MAX:
        yield f"  and {len(distinct) - _SHOWN_MAX} more"


def _short(record: Any) -> str:
    text = repr(record)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"
