"""The streams of one epoch as frames: inputs, outputs of operators, and transforms of both."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statekit.closing import Closing
from statekit.job.plan import Plan, Transform
from statekit.spark.frames.columns import selected
from statekit.spark.worker.pickling import Pickled, pickled_transforms
from statekit.spark.worker.shards import TransformStep, output_schema


class Transforms:
    """The transforms of a job, pickled once, with the columns of their frames.

    Parameters:
        job: the job.
    """

    def __init__(self, job: Plan) -> None:
        self.job = job
        self._sent: dict[tuple[Transform, ...], Pickled[tuple[Transform, ...]]] = {}
        self._schemas: dict[str, StructType] = {}

    def frame(self, transforms: tuple[Transform, ...], df: DataFrame, epoch: int) -> DataFrame:
        """Apply a chain of transforms to a frame of an epoch."""
        last = transforms[-1]
        if last.function.selects_columns:
            return selected(last, df)
        schema = df.schema
        if not all(each.function.keeps_records for each in transforms):
            schema = self._schema(last)
        if transforms not in self._sent:
            self._sent[transforms] = pickled_transforms(transforms)
        restores = not self.job.has_given_rows(transforms[0].input)
        return df.mapInArrow(TransformStep(self._sent[transforms], restores, epoch), schema)

    def _schema(self, transform: Transform) -> StructType:
        if transform.name not in self._schemas:
            schema = from_arrow_schema(output_schema(transform.function.output_type))
            self._schemas[transform.name] = schema
        return self._schemas[transform.name]


class EpochStreams(Closing):
    """The frames of the streams of one epoch, by name. Use it in a with block.

    Transforms of sources and of outputs become frames when they are read. Transforms of one another
    become one frame.

    Parameters:
        inputs: the frames of the sources. None is created before it is read.
        transforms: of the job.
        epoch: which one.
        persists: whether to persist the outputs of transforms that are read several times.
    """

    def __init__(
        self, inputs: Mapping[str, DataFrame], transforms: Transforms, epoch: int, *, persists: bool
    ) -> None:
        self._inputs = inputs
        self._transforms, self._epoch = transforms, epoch
        self._persists = persists
        self._frames: dict[str, DataFrame] = {}
        self._persisted: list[DataFrame] = []

    def __getitem__(self, name: str) -> DataFrame:
        """Return the frame of a stream."""
        if name not in self._frames:
            transform = self._transforms.job.transform(name)
            if transform is None:
                return self._inputs[name]
            frame = self._transformed(transform)
            # A selection of columns costs nothing that was computed.
            is_selection = transform.function.selects_columns
            several = self._persists and not is_selection and self._reads(name) > 1
            self._frames[name] = self.persist(frame) if several else frame
        return self._frames[name]

    def _reads(self, stream: str) -> int:
        """Return the number of reads of a stream, including reads of columns selected from it."""
        job = self._transforms.job
        late = [op for op in job.consumers_of(stream) if job.wants_late(op)]
        selections = [of for of in job.transforms_of(stream) if of.function.selects_columns]
        others = job.reads_of(stream) - len(selections) + len(late)
        return others + sum(self._reads(of.name) for of in selections)

    def __setitem__(self, name: str, frame: DataFrame) -> None:
        self._frames[name] = frame

    def persist(self, frame: DataFrame) -> DataFrame:
        """Persist a frame until the end of the with block, and return it."""
        frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._persisted.append(frame)
        return frame

    def _transformed(self, last: Transform) -> DataFrame:
        """Return the frame of a transform. Earlier transforms without other readers run in the same
        step.
        """
        job, transforms = self._transforms.job, [last]
        while not last.function.selects_columns:
            before = job.transform(transforms[0].input)
            if before is None or before.function.selects_columns or before.name in self._frames:
                break
            if job.reads_of(before.name) > 1:
                break
            after_maps = not before.function.keeps_records
            if after_maps and all(each.function.keeps_records for each in transforms):
                break  # rows keep their columns behind the last function that makes new ones
            transforms.insert(0, before)
        return self._transforms.frame(tuple(transforms), self[transforms[0].input], self._epoch)

    def close(self) -> None:
        """Release the persisted frames."""
        while self._persisted:
            self._persisted.pop().unpersist()
