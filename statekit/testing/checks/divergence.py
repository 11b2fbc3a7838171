"""Message about a difference between two runs: its meaning, both runs side by side, and a test."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from textwrap import indent, wrap
from typing import Any

from statekit.functions.process import Process
from statekit.shown import shown
from statekit.testing.checks.property import Property, RunDifference
from statekit.testing.runs.observed import Observed
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject
from statekit.testing.written_test import CodeWriter

_WIDTH = 44  # of a column
_TEXT_MAX = 10_000  # characters of the records of an epoch
_EPOCHS_MAX = 12  # that are shown


def explained_difference(
    subject: Subject,
    checked: Property,
    history: History,
    argument: Any,
    difference: RunDifference | None,
) -> str:
    """Return the message about a property that does not hold.

    Parameters:
        history, argument: the smallest history, and the disturbance of its run.
        difference: the difference; None if it did not occur again.
    """
    lines = [f"{subject.name}: {checked.name!r} does not hold. {checked.means}.", ""]
    if difference is None:
        lines += [
            "The runs differed, and did not when they were run once more: the function keeps "
            "something between runs, such as a global variable, or depends on chance.",
            "",
        ]
    else:
        lines += [f"What differs: {difference.what}", "", *_side_by_side(difference), ""]
    writer = CodeWriter()
    named = _name_of(writer, subject)
    body = _body(writer, subject, checked, history, f"{checked.name!r}: {argument!r}", named)
    test = "\n".join(writer.test(f"{subject.name}_{checked.name}", body, ["Fault", "check"]))
    lines += ["This test runs it again:", "", indent(test, "    ")]
    lines += ["", f"If this is intended: check({named}, excused={{{checked.name!r}: 'why'}})"]
    return "\n".join(lines)


def _side_by_side(difference: RunDifference) -> Iterator[str]:
    """Yield the records of two runs, epoch by epoch."""
    one, other = difference.runs
    titles = difference.titles if other is not None else difference.titles[:1]
    yield from _row("", titles)
    for number, epochs in enumerate(_epochs(one, other)):
        if number == _EPOCHS_MAX:
            yield "  …"
            return
        yield from _row(f"epoch {number}", [_text(epoch) for epoch in epochs])


def _epochs(one: Observed, other: Observed | None) -> list[tuple[Any, ...]]:
    if other is None:
        return [(epoch,) for epoch in one.epochs]
    return list(zip_longest(one.epochs, other.epochs, fillvalue={}))


def _row(title: str, cells: Any) -> Iterator[str]:
    columns = [wrap(cell, _WIDTH) or [""] for cell in cells]
    for number, parts in enumerate(zip_longest(*columns, fillvalue="")):
        label = title if not number else ""
        yield (f"  {label:<9}" + "  ".join(f"{part:<{_WIDTH}}" for part in parts)).rstrip()


def _text(epoch: dict[str, list[Any]]) -> str:
    """Return the text of the records of an epoch, by sink."""
    texts = [f"{sink}: {shown(of, _TEXT_MAX)}" for sink, of in epoch.items() if of]
    others = [of for sink, of in epoch.items() if sink != "outputs"]
    if {"outputs"} <= epoch.keys() <= {"outputs", "late", "errors"} and not any(others):
        return shown(epoch["outputs"], _TEXT_MAX)
    return "; ".join(texts) or "nothing"


def _name_of(writer: CodeWriter, subject: Subject) -> str:
    """Return the name of the subject in the test."""
    if isinstance(subject.given, Process) and inspect.isfunction(subject.given.fn):
        return writer.name_of(subject.given, subject.given.fn)
    return writer.variable(subject.variable, subject.given)


def _body(
    writer: CodeWriter,
    subject: Subject,
    checked: Property,
    history: History,
    holds: str,
    named: str,
) -> Iterator[str]:
    """Yield the lines of the test.

    Parameters:
        holds: the property and the disturbance of its run.
        named: the name of the subject.
    """
    yield "history = ["
    for epoch in history:
        if len(subject.job.plan.sources) == 1:
            yield from _indented(
                _listed(writer, "", [each for some in epoch.values() for each in some])
            )
        else:
            yield "    {"
            for name, records in epoch.items():
                yield from _indented(_indented(_listed(writer, f"{name!r}: ", records)))
            yield "    },"
    yield "]"
    own = "" if checked.given is None else f"{checked.name}={writer.name_of(checked.given)}, "
    yield f"check({named}, history=history, {own}holds={{{holds}}})"


def _listed(writer: CodeWriter, title: str, records: list[Any]) -> Iterator[str]:
    """Yield the lines of a list of records, each in a line of its own if there are several."""
    if len(records) < 2:
        yield f"{title}{writer.source_of(records)},"
        return
    yield f"{title}["
    yield from _indented(f"{writer.source_of(record)}," for record in records)
    yield "],"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)
