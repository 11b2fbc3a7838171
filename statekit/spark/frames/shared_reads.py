"""Frames that are read once for several streams.

Several streaming inputs are merged into one frame of a streaming query, and split again. A row of
the merged frame has the name of its source, and a struct for each source, which is null for all
others. To read one source out of it means to read all of them.

If several streams of an operator select columns of one frame, or of merged inputs, the operator
reads that frame once. A row of it becomes a row of each stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from statekit.job.plan import Plan, Transform
from statekit.spark.frames.columns import quoted, selected_columns

SOURCE = "__statekit_source"
_FIELDS = "__statekit_fields"
_MADE = "__statekit_made"


def merged(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return all inputs as one frame; a single input unchanged."""
    frames = list(inputs.items())
    if len(frames) == 1:
        return frames[0][1]
    tagged = [
        df.select(
            F.lit(name).alias(SOURCE),
            F.struct(*(F.col(quoted(column)) for column in df.columns)).alias(name),
        )
        for name, df in frames
    ]
    return reduce(lambda one, right: one.unionByName(right, allowMissingColumns=True), tagged)


def split(df: DataFrame, job: Plan, others: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    """Split a micro-batch into the inputs that `merged` combined.

    Parameters:
        others: the inputs that are not of the stream.
    """
    names = [source.name for source in job.sources if source.name not in others]
    if len(names) == 1:
        return {names[0]: df, **others}
    return MergedInputs(df, names, others)


class MergedInputs(Mapping[str, DataFrame]):
    """The inputs of a micro-batch by name, each created on its first use.

    Parameters:
        whole: all of them, as of `merged`.
        of_whole: their names.
        others: inputs that are not among them.
    """

    def __init__(
        self, merged_frame: DataFrame, names: Sequence[str], others: Mapping[str, DataFrame]
    ) -> None:
        self.whole = merged_frame
        self.of_whole = frozenset(names)
        self.others = others
        self._names = (*names, *others)
        self._apart: dict[str, DataFrame] = {**others}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._apart:
            own = self.whole.where(F.col(SOURCE) == name)
            self._apart[name] = own.select(f"{quoted(name)}.*")
        return self._apart[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


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
