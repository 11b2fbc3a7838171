"""`KVStore`: a key-value store in a job, whose operations are streams."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from typing_extensions import TypeVar

from statekit.errors import StateTypeError
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.stream import Stream
from statekit.kv.store_operator import StoreOperator
from statekit.kv.store_reads import StoreReads
from statekit.kv.store_writes import StoreWrites
from statekit.state.options import TTL

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
R = TypeVar("R", default=Any)


class KVStore(StoreReads[K, V], StoreWrites[K, V]):
    """A key-value store in a job. Its operations are streams, and its values are state.

    Add it to a job, then call its operations with streams of that job, any number of times. Each
    call returns the stream of its answers. Within an epoch, the operations of a key run in the
    order of their declaration; those of one stream run in the order of its records. With
    `event_time`, they run in the order of time.

    An answer is a record with the parts of its request, such as `key`, and the results, such as
    `value`. `into=` is a class for the answers of one operation, with some of these fields.

    Parameters:
        name: of the operator, and a prefix of the names of its streams.
        key: the type of keys: str, int, bytes, bool, a date or a datetime, or a tuple of these,
            such as `tuple[str, int]`.
        value: the type of values, as for `ValueState`. None stands for an absent value.
        sort: the type of the ordered part of keys; `key` is then a partition, within which `scan`
            reads entries in order.
        event_time: the field with the time of the records of all operations. Operations of one key
            and time run in the order of their declaration, then of the values of their requests.
            Answers have the time as `at`.
        lateness: how far the watermark stays behind the largest event time.
        history: lifetime of replaced values, for `as_of`; a timedelta or a text such as "7 days".
            It needs `event_time`.
        ttl: lifetime of a value.
        migrate: per state ("value", or "values" with `sort`) hooks as for `@process`.

    Raises:
        StateTypeError: an option is not valid, or two of them cannot be combined.

    >>> from typing import NamedTuple
    >>> import statekit as sk
    >>> class Payment(NamedTuple):
    ...     account: str
    ...     cents: int
    >>> class Query(NamedTuple):
    ...     account: str
    >>> job = sk.Job("bank")
    >>> balances = job.add(sk.KVStore("balances", key=str, value=int))
    >>> payments, queries = job.source("payments", Payment), job.source("queries", Query)
    >>> def paid(balance: int | None, payment: Payment) -> int:
    ...     return (balance or 0) + payment.cents
    >>> _ = balances.update(payments, paid, key="account")
    >>> _ = balances.get(queries, key="account").sink("answers")
    >>> given = {"payments": [Payment("ada", 500), Payment("ada", 20)]}
    >>> run = job.run({**given, "queries": [Query("ada"), Query("bob")]})
    >>> sorted((answer.key, answer.value) for answer in run["answers"])
    [('ada', 520), ('bob', None)]
    """

    def __init__(
        self,
        name: str,
        *,
        key: type[K],
        value: type[V],
        sort: Any = None,
        event_time: str | None = None,
        lateness: dt.timedelta | str = dt.timedelta(0),
        history: dt.timedelta | str | None = None,
        ttl: TTL | None = None,
        migrate: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self._operator = StoreOperator(
            name,
            key=key,
            value=value,
            sort=sort,
            event_time=event_time,
            lateness=lateness,
            history=history,
            ttl=ttl,
            migrate=migrate,
        )

    def __repr__(self) -> str:
        return f"<KVStore {self.name!r}: {', '.join(self._operator.operations) or 'no operations'}>"

    @property
    def function(self) -> Process[Any, ..., Any]:
        """The process function of the store, with all operations so far.

        Give it to a replica, a client or a feed, which then return keys and values of the types of
        the store.

        Raises:
            StateTypeError: no operation was declared.

        >>> from typing import NamedTuple
        >>> import statekit as sk
        >>> from statekit.checkpoint.repository import Repository
        >>> class Payment(NamedTuple):
        ...     account: str
        ...     cents: int
        >>> job = sk.Job("bank")
        >>> last = job.add(sk.KVStore("last", key=str, value=Payment))
        >>> _ = last.put(job.source("payments", Payment), key="account")
        >>> checkpoint = Repository.in_memory()
        >>> _ = job.run({"payments": [Payment("ada", 500)]}, checkpoint=checkpoint)
        >>> with sk.Replica(checkpoint, functions=[last.function]) as replica:
        ...     replica.get("last", "value", "ada").value
        Payment(account='ada', cents=500)
        """
        return self._operator.declared_function()

    def added_to(self, job: Job) -> None:
        """Set the job of the store. Called by `Job.add`.

        Raises:
            StateTypeError: it already belongs to a job.
        """
        if self._operator.job is not None:
            raise StateTypeError(
                f"{self._operator.where} belongs to job {self._operator.job.name!r}: make a store "
                "for each job"
            )
        self._operator.job = job

    def late(self, answers: Stream[Any]) -> Stream[Any]:
        """Return the late requests of an operation: records with `key`, `at` and its other parts;
        for `multi_get`, the records themselves.

        Late operations have no effect and no answers.

        Parameters:
            answers: the stream that the operation returned.

        Raises:
            StateTypeError: the store has no `event_time`, or the stream has no answers of it.
        """
        return self._operator.late(answers)
