"""Merge several streaming inputs into one frame of a streaming query, and split it again.

A row of the merged frame has the name of its source, and a struct for each source, which is null
for all others. To read one source out of it means to read all of them. So an operator of several
sources reads the merged frame once: see `shared_reads`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from statekit.job.job import Job
from statekit.spark.frames.columns import quoted

SOURCE = "__statekit_source"


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


def split(df: DataFrame, job: Job) -> Mapping[str, DataFrame]:
    """Split a micro-batch into the inputs that `merged` combined."""
    names = [source.name for source in job.sources]
    return {names[0]: df} if len(names) == 1 else MergedInputs(df, names)


class MergedInputs(Mapping[str, DataFrame]):
    """The inputs of a micro-batch by name, each created on its first use.

    Parameters:
        whole: all of them, as of `merged`.
    """

    def __init__(self, merged_frame: DataFrame, names: Sequence[str]) -> None:
        self.whole = merged_frame
        self._names = tuple(names)
        self._apart: dict[str, DataFrame] = {}

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
