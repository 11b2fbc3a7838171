"""Read a frame once for all streams of an operator that select columns of it.

A row of such a frame becomes a row of each stream. The merged inputs of a micro-batch are such a
frame, too: one row of it belongs to a single source, but to read one source means to read all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from statekit.job.plan import Plan, Transform
from statekit.spark.frames.columns import quoted
from statekit.spark.frames.merged_inputs import SOURCE
from statekit.spark.frames.plan import selected_columns

_FIELDS = "__statekit_fields"
_MADE = "__statekit_made"


@dataclass(frozen=True)
class StreamColumns:
    """A stream of an operator as columns of another stream.

    Parameters:
        base: the name of the other stream; its own if it selects no columns.
        selections: the transforms between them, which select columns.
        columns: of the operator's rows, as expressions of the stream's columns.
    """

    base: str
    selections: tuple[Transform, ...]
    columns: Sequence[Column]

    @classmethod
    def of(cls, plan: Plan, stream: str, columns: Sequence[Column]) -> StreamColumns:
        """Return the columns of a stream, relative to the nearest earlier stream that is
        computed.
        """
        selections: list[Transform] = []
        while (transform := plan.transform(stream)) is not None:
            function = transform.function
            if not function.selects_columns or function.kind != "select":
                break
            selections.insert(0, transform)
            stream = transform.input
        return cls(stream, tuple(selections), columns)


def with_one_read(streams: Sequence[StreamColumns]) -> Iterator[list[StreamColumns]]:
    """Yield groups of streams with the same base."""
    for base in dict.fromkeys(stream.base for stream in streams):
        yield [stream for stream in streams if stream.base == base]


def shared_rows(
    frame: DataFrame, streams: Sequence[StreamColumns], *, is_merged: bool
) -> DataFrame:
    """Return the rows of several streams as one frame, which is read once.

    Parameters:
        frame: of their base; the merged inputs if they have several.
        streams: have columns with equal names and types.
        is_merged: whether it is the merged inputs.
    """
    if len(streams) == 1 and not is_merged:
        for transform in streams[0].selections:
            frame = frame.select(*selected_columns(transform, frame))
        return frame.select(*streams[0].columns)
    places = range(len(streams))
    fields = [f"{_FIELDS}_{place}" for place in places]
    names = [f"{_MADE}_{place}" for place in places]
    kept = [SOURCE] if is_merged else []
    own = [F.col(quoted(of.base)) if is_merged else F.struct("*") for of in streams]
    if is_merged:
        frame = frame.where(F.col(SOURCE).isin(*{stream.base for stream in streams}))
    rows = frame.select(*kept, *map(Column.alias, own, fields))
    for place, stream in enumerate(streams):
        # Its own fields, for a moment, are columns as they are in a frame of it alone.
        before, behind = [*kept, *names[:place]], fields[place + 1 :]
        others = [*before, *behind]
        rows = rows.select(*others, f"{fields[place]}.*")
        for transform in stream.selections:
            rows = rows.select(*others, *selected_columns(transform, rows))
        made = F.struct(*stream.columns)
        if is_merged:
            made = F.when(F.col(SOURCE) == stream.base, made)
        rows = rows.select(
            *others[: place + len(kept)], made.alias(names[place]), *fields[place + 1 :]
        )
    if is_merged and len({stream.base for stream in streams}) == len(streams):
        return rows.select(F.coalesce(*names).alias(_MADE)).select(f"{_MADE}.*")
    every = F.array_compact(F.array(*names)) if is_merged else F.array(*names)
    return rows.select(F.explode(every).alias(_MADE)).select(f"{_MADE}.*")
