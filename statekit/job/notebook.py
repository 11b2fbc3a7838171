"""What a notebook shows of a job, a stream, a run and a query: HTML without scripts and styles of
its own, in the colours of the text around it, so that it fits a light and a dark theme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from statekit.byte_size import size_text
from statekit.errors import CALL_FAILURES
from statekit.job.diagram import picture_of_plan
from statekit.job.plan import Plan
from statekit.printable import printable
from statekit.records.union import records_of
from statekit.shown import shown

_ROWS_MAX = 10
_EPOCHS_MAX = 5
_TEXT_MAX = 200

_COLUMNS = ("epoch", "records", "per second", "seconds", "outputs", "late", "failed", "state")


def plan_html(title: str, plan: Plan) -> str:
    """Return the plan of a job, below a title."""
    picture = picture_of_plan(plan).svg()
    return f'{_title(title)}<div style="overflow-x:auto">{picture}</div>'


def run_html(title: str, outputs: Mapping[str, Sequence[Any]], others: Iterable[str]) -> str:
    """Return the first records of each sink of a run.

    Parameters:
        outputs: the records, by sink.
        others: sinks whose records went to a target.
    """
    parts = [_title(title)]
    for sink, records in outputs.items():
        count = f"{len(records):,} {'record' if len(records) == 1 else 'records'}"
        first = f", the first {_ROWS_MAX}" if len(records) > _ROWS_MAX else ""
        parts.append(_line(f"sink {sink}: {count}{first}"))
        if records:
            parts.append(_records_table(records[:_ROWS_MAX]))
    parts += [_line(f"sink {sink}: in its target") for sink in others]
    return "".join(parts)


def progress_html(title: str, progress: Sequence[Any]) -> str:
    """Return the last epochs of a job, the last one first.

    Parameters:
        progress: the `Progress` of each epoch, oldest first.
    """
    rows = [
        [
            f"{each.epoch:,}",
            f"{each.records_in:,}",
            f"{each.events_per_second:,.0f}",
            f"{each.seconds:.2f}",
            f"{each.records_out:,}",
            f"{each.late:,}",
            f"{each.failed:,}",
            f"{sum(each.state_rows.values()):,} rows, {size_text(sum(each.state_bytes.values()))}",
        ]
        for each in reversed(progress[-_EPOCHS_MAX:])
    ]
    lags = progress[-1].source_lags.items() if progress else ()
    behind = [_line(f"source {name}: {lag:,} records behind") for name, lag in lags]
    return "".join([_title(title), _table(_COLUMNS, rows) if rows else "", *behind])


def _records_table(records: Sequence[Any]) -> str:
    columns = dict.fromkeys(name for record in records for name in _fields(record))
    if not columns:
        return _table(["value"], [[shown(record, _TEXT_MAX)] for record in records])
    read: Callable[[Any, str], Any] = lambda record, name: (  # noqa: E731
        record.get(name, "") if isinstance(record, dict) else getattr(record, name, "")
    )
    cells = [[_cell(read(record, name)) for name in columns] for record in records]
    return _table([str(name) for name in columns], cells)


def _fields(record: Any) -> Iterable[str]:
    """Return the names of the fields of a record; none if it is a single value."""
    if isinstance(record, dict):
        return record
    try:
        return records_of(type(record), where="a run").members[0].field_names
    except CALL_FAILURES:
        return ()


def _cell(value: Any) -> str:
    return value if type(value) is str else shown(value, _TEXT_MAX)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _title(text: str) -> str:
    return f"<div><strong>{_text(text)}</strong></div>"


def _line(text: str) -> str:
    return f"<div>{_text(text)}</div>"


def _text(text: str) -> str:
    """Return a text as HTML. No name or value can add a tag, or mathematics of a notebook."""
    return escape(printable(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…")).replace(
        "$", "&#36;"
    )
