"""The errors that statekit raises on purpose.

StatekitError
├── StateTypeError          (TypeError)   a declaration or a value that a type cannot hold
├── StateSchemaError                      stored state and declared state do not match
├── CorruptCheckpointError                a stored file is missing, truncated or altered
├── FencedError                           another writer owns this checkpoint or lease
├── IncompleteEpochError                  a sink did not consume the whole output once
├── RestoreError                          this checkpoint cannot be continued as requested
├── RescaleError            (ValueError)  a parallelism or key group count that cannot be
├── ProcessError                          a user function, its input or its output failed
├── BootstrapError                        rows that states cannot hold were refused
├── QueryError              (LookupError) a read of state that cannot be answered
└── StorageError            (OSError)     the checkpoint store or local disk failed
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

__all__ = [
    "CALL_FAILURES",
    "BootstrapError",
    "CorruptCheckpointError",
    "FencedError",
    "IncompleteEpochError",
    "ProcessError",
    "QueryError",
    "RescaleError",
    "RestoreError",
    "StateSchemaError",
    "StateTypeError",
    "StatekitError",
    "StorageError",
    "class_of_kind",
    "error_class",
    "is_close",
    "is_of_call",
    "is_users",
]


class StatekitError(Exception):
    """The base class of all errors that statekit raises on purpose.

    >>> try:
    ...     raise RestoreError("no such checkpoint: pass a path that exists")
    ... except StatekitError as error:
    ...     print(error.kind)
    restore
    """

    kind: ClassVar[str] = "statekit"


class StateTypeError(StatekitError, TypeError):
    """A declaration is not valid, or a value does not fit its declared type."""

    kind: ClassVar[str] = "state_type"


class StateSchemaError(StatekitError):
    """The types stored in a checkpoint and the types declared in code do not match."""

    kind: ClassVar[str] = "state_schema"


class CorruptCheckpointError(StatekitError):
    """A file of a checkpoint is missing, truncated or altered. Names the file."""

    kind: ClassVar[str] = "corrupt_checkpoint"


class FencedError(StatekitError):
    """Another writer committed the epoch that this one was about to commit, or another process
    holds the lease of the same reader.
    """

    kind: ClassVar[str] = "fenced"


class IncompleteEpochError(StatekitError):
    """A sink consumed only a part of an epoch's output, none of it, or more than once."""

    kind: ClassVar[str] = "incomplete_epoch"


class RetryError(IncompleteEpochError):
    """An attempt failed, and the driver runs the epoch again in a way that avoids the failure.

    Parameters:
        message: what happened.
        operator: the operator whose shard failed.
    """

    def __init__(self, message: str, operator: str) -> None:
        super().__init__(message, operator)
        self.operator = operator

    def __str__(self) -> str:
        return f"{self.args[0]} [operator {self.operator}]"

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the error with this text. Errors of Spark's workers reach the driver as text.

        >>> StrayKeyError.from_text(str(StrayKeyError("a stray key", "count"))).operator
        'count'
        """
        message, _, operator = text.rpartition(" [operator ")
        return cls(message, operator.removesuffix("]"))


class StrayKeyError(RetryError):
    """A chained operator received a record that belongs to another shard.

    Users never see it: the epoch runs again without the chain.
    """


class UnsortedError(RetryError):
    """Rows of a shard are not sorted by key and arrival.

    The epoch runs again with rows sorted by all of their columns. Users see the error only if it
    happens again.
    """


class RestoreError(StatekitError):
    """A checkpoint cannot be continued as requested."""

    kind: ClassVar[str] = "restore"


class RescaleError(StatekitError, ValueError):
    """The parallelism or the number of key groups is not possible."""

    kind: ClassVar[str] = "rescale"


class ProcessError(StatekitError):
    """A user's function failed, or its input or output does not fit."""

    kind: ClassVar[str] = "process"


class BootstrapError(StatekitError):
    """Rows that a bootstrap was given do not fit their states, and nothing was committed.

    Parameters:
        message: what happened.
        refused: per state, an Arrow table of the refused rows with the column `reason`.
    """

    kind: ClassVar[str] = "bootstrap"

    def __init__(self, message: str, refused: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.refused = dict(refused)


class QueryError(StatekitError, LookupError):
    """A read of state failed: the operator, state, key or epoch does not exist."""

    kind: ClassVar[str] = "query"


class StorageError(StatekitError, OSError):
    """The checkpoint store or the local disk failed: full, unwritable or unreachable."""

    kind: ClassVar[str] = "storage"


class ConnectorError(StatekitError, OSError):
    """A system that a source reads or a sink writes failed: unreachable, refused, or without the
    table or topic.
    """

    kind: ClassVar[str] = "connector"


def name_failed(error: ConnectorError | StorageError, failed: str) -> None:
    """Put the name of what failed before the text of an error, unless the text has it.

    >>> error = ConnectorError("no broker answers")
    >>> name_failed(error, "source 'orders'")
    >>> print(error)
    source 'orders': no broker answers
    """
    text = str(error)
    if failed not in text:
        error.args = (f"{failed}: {text}",)


CALL_FAILURES = (Exception, SystemExit, GeneratorExit, BaseExceptionGroup)
"""The exceptions that count as failures of a user's function. Other ones, such as
KeyboardInterrupt, end the run unchanged.
"""


def is_close(error: BaseException) -> bool:
    """Return whether an exception closes the generator of this frame, and was not raised by a
    function that the frame has called.

    >>> def emitted():
    ...     try:
    ...         yield 1
    ...     except GeneratorExit as error:
    ...         print(is_close(error))
    >>> outputs = emitted()
    >>> next(outputs), outputs.close()
    True
    (1, None)
    """
    raised_at: types.TracebackType | None = error.__traceback__
    is_here = raised_at is None or raised_at.tb_next is None
    return is_here and issubclass(type(error), GeneratorExit)  # `__class__` may be the user's


def is_users(error: BaseException) -> bool:
    """Return whether a call of a user's function failed with an error of the user, and not with
    one that statekit raised in this call. A user may raise the classes of statekit, too.

    >>> is_users(ZeroDivisionError()), is_users(StorageError("the disk is full"))
    (True, False)
    """
    kind = type(error)  # `__class__` may be code of the user, which isinstance would call
    if not issubclass(kind, CALL_FAILURES) or not issubclass(kind, StatekitError):
        return issubclass(kind, CALL_FAILURES)
    if issubclass(kind, RetryError):
        return False  # it may come through a sink that runs a part of the epoch
    if (raised_at := error.__traceback__) is None:
        return False
    while raised_at.tb_next is not None:
        raised_at = raised_at.tb_next
    module = raised_at.tb_frame.f_globals.get("__name__", "")
    return not str(module).startswith("statekit.")


def is_of_call(error: BaseException) -> bool:
    """Return whether an error is about the record for which a user's function was called: an error
    of the user, or a value that does not fit the type of a state.

    >>> is_of_call(ZeroDivisionError()), is_of_call(StateTypeError("expected int, got str"))
    (True, True)
    >>> is_of_call(StorageError("the disk is full")), is_of_call(KeyboardInterrupt())
    (False, False)
    """
    return type(error) is StateTypeError or is_users(error)


def error_class(name: str) -> type[StatekitError] | None:
    """Return the error class of this name; None if there is none.

    Errors cross process boundaries as text (a Spark worker's traceback); this finds the class again
    on the other side.

    >>> error_class("FencedError")
    <class 'statekit.errors.FencedError'>
    """
    cls = globals().get(name)
    return cls if isinstance(cls, type) and issubclass(cls, StatekitError) else None


def class_of_kind(kind: str) -> type[StatekitError] | None:
    """Return the error class of this kind; None if there is none.

    >>> class_of_kind("state_type")
    <class 'statekit.errors.StateTypeError'>
    """
    classes = (error_class(name) for name in __all__ if name.endswith("Error"))
    return next((cls for cls in classes if cls is not None and cls.kind == kind), None)
