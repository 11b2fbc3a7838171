"""Typed state for Python stream processing on Spark."""

from statekit import sinks
from statekit.base_options import BaseOptions
from statekit.codec import PickleCodec
from statekit.context import Context
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    IncompleteEpochError,
    ProcessError,
    QueryError,
    RescaleError,
    RestoreError,
    StatekitError,
    StateSchemaError,
    StateTypeError,
    StorageError,
)
from statekit.field_aggregates import Count, FieldAggregate, Max, Mean, Min, Sum
from statekit.job import Job
from statekit.list_state import ListState
from statekit.map_state import MapState
from statekit.operator_state import (
    BroadcastState,
    Checkpointed,
    OperatorListState,
    OperatorState,
)
from statekit.process import Process, process
from statekit.retention import Retention
from statekit.rocks_options import RocksOptions
from statekit.single_row_states import AggregatingState, ReducingState, ValueState
from statekit.state_options import TTL, Aggregate, Default, Redistribute, Reduce
from statekit.stream import Stream, Windowed
from statekit.timers import Timer, Timers
from statekit.windows import session, sliding, tumbling

__all__ = [
    "TTL",
    "Aggregate",
    "AggregatingState",
    "BaseOptions",
    "BroadcastState",
    "Checkpointed",
    "Context",
    "CorruptCheckpointError",
    "Count",
    "Default",
    "FencedError",
    "FieldAggregate",
    "IncompleteEpochError",
    "Job",
    "ListState",
    "MapState",
    "Max",
    "Mean",
    "Min",
    "OperatorListState",
    "OperatorState",
    "PickleCodec",
    "Process",
    "ProcessError",
    "QueryError",
    "Redistribute",
    "Reduce",
    "ReducingState",
    "RescaleError",
    "RestoreError",
    "Retention",
    "RocksOptions",
    "StateSchemaError",
    "StateTypeError",
    "StatekitError",
    "StorageError",
    "Stream",
    "Sum",
    "Timer",
    "Timers",
    "ValueState",
    "Windowed",
    "process",
    "session",
    "sinks",
    "sliding",
    "tumbling",
]
