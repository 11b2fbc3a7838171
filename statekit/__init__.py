"""Typed state for Python stream processing on Spark."""

from statekit import sinks, sources
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.retention import Retention
from statekit.codec.digest import digest
from statekit.codec.value_codec import PickleCodec
from statekit.connectors.secret_text import secret
from statekit.errors import (
    BootstrapError,
    ConnectorError,
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
from statekit.expressions.expression import Expression, col, expr, lit
from statekit.functions.context import Context
from statekit.functions.failed_record import FailedRecord
from statekit.functions.process import Process, process
from statekit.job.job import Job
from statekit.job.mirror_options import MirrorOptions
from statekit.job.stream import OperatorStream, Stream, Windowed
from statekit.job.windows.count_windows import count_windows
from statekit.job.windows.field_aggregates import (
    Collect,
    Count,
    FieldAggregate,
    Last,
    Max,
    Mean,
    Min,
    OwnAggregate,
    Sum,
    Top,
)
from statekit.job.windows.sessions import session
from statekit.job.windows.sliding import sliding, tumbling
from statekit.kv.store import KVStore
from statekit.maintenance.transform.declaration import CheckpointTransform, transform
from statekit.maintenance.transform.state_row import StateRow
from statekit.maintenance.transform.transformation import Transformation
from statekit.mirrors.mirror import Mirror, mirror
from statekit.query.changes.change import Change
from statekit.query.changes.feed import EpochChanges, Feed, feed
from statekit.query.replica.replica import Answer, Replica, ReplicaStatus
from statekit.query.replica.state_view import Page, StateView
from statekit.query.replica.view import View
from statekit.query.tables.read import read
from statekit.recording.recorder import Recorder
from statekit.records.arrow_scalars import Decimals
from statekit.state.list_state import ListState
from statekit.state.map_state import MapState
from statekit.state.operator_state import (
    BroadcastState,
    Checkpointed,
    OperatorListState,
    OperatorState,
)
from statekit.state.options import TTL, Aggregate, Default, Redistribute, Reduce
from statekit.state.single_row_states import AggregatingState, ReducingState, ValueState
from statekit.state.timers import Timer, Timers
from statekit.working_copy.base_options import BaseOptions

__all__ = [
    "TTL",
    "Aggregate",
    "AggregatingState",
    "Answer",
    "BaseOptions",
    "BootstrapError",
    "BroadcastState",
    "Change",
    "CheckpointTransform",
    "Checkpointed",
    "Collect",
    "ConnectorError",
    "Context",
    "CorruptCheckpointError",
    "Count",
    "Decimals",
    "Default",
    "EpochChanges",
    "Expression",
    "FailedRecord",
    "Feed",
    "FencedError",
    "FieldAggregate",
    "IncompleteEpochError",
    "Job",
    "KVStore",
    "Last",
    "ListState",
    "MapState",
    "Max",
    "Mean",
    "Min",
    "Mirror",
    "MirrorOptions",
    "OperatorListState",
    "OperatorState",
    "OperatorStream",
    "OwnAggregate",
    "Page",
    "PickleCodec",
    "Process",
    "ProcessError",
    "QueryError",
    "Recorder",
    "Redistribute",
    "Reduce",
    "ReducingState",
    "Replica",
    "ReplicaStatus",
    "RescaleError",
    "RestoreError",
    "Retention",
    "RocksOptions",
    "StateRow",
    "StateSchemaError",
    "StateTypeError",
    "StateView",
    "StatekitError",
    "StorageError",
    "Stream",
    "Sum",
    "Timer",
    "Timers",
    "Top",
    "Transformation",
    "ValueState",
    "View",
    "Windowed",
    "col",
    "count_windows",
    "digest",
    "expr",
    "feed",
    "lit",
    "mirror",
    "process",
    "read",
    "secret",
    "session",
    "sinks",
    "sliding",
    "sources",
    "transform",
    "tumbling",
]


def __dir__() -> list[str]:
    """Return the public names: completion does not list the modules that are imported with them."""
    return sorted(__all__)
