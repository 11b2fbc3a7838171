"""Clients of `statekit serve` and `statekit server`: the reads of a replica, and the changes of
submitted jobs, over HTTP.

`_Exchanges` builds the requests and decodes the answers. `Client` and `AsyncClient` send the
requests, and try again while the server is busy, starts or cannot be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import enum
import json
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from itertools import count
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx
import msgspec

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.state_kinds import RowShape
from statekit.clock import sleep_s, unique_id
from statekit.closing import Closing
from statekit.codec.json_form import json_form
from statekit.errors import (
    CorruptCheckpointError,
    QueryError,
    StateTypeError,
    StorageError,
    class_of_kind,
)
from statekit.foreign import foreign_hint
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.number_faults import int_fault
from statekit.query.plain_requests import HttpAnswer, PlainRequests, is_plain
from statekit.query.replica.replica import Answer
from statekit.query.replica.replica_arguments import functions_by_operator, listed_keys
from statekit.query.rows.state_rows import StateRows, TextRange
from statekit.shown import shown, shown_text, type_name
from statekit.state.closed_bounds import ClosedBounds, closed_ends
from statekit.timestamp import duration_to_micros

T = TypeVar("T")
P = ParamSpec("P")

_BUSY = frozenset({429, 502, 503, 504})
_ABSENT = 404
_SUBMITTED = "/submitted"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
"""Status codes of a proxy that has moved, or that accepts only TLS."""
_VISIBLE = re.compile(r"[\x21-\x7e]+")
"""Characters that the value of a header may have."""
_PAGE_ROWS = 1_000
"""Number of keys or entries that a scan asks for at a time."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_RETRIES_AT_FIRST, _RETRIES_LATER = 4, 13
"""Pauses of 1.5 s and of 41 s in all: a restart of a server takes up to 30 s."""

Functions = Mapping[str, Process[Any, Any, Any]] | Iterable[Process[Any, Any, Any]]


class EpochChoice(TypedDict, total=False):
    """The epoch to read, as in addresses; without any of these, the last one that is served.

    Parameters:
        epoch: its number.
        as_of: the last epoch that was not processed after this time: an aware datetime or ISO text.
        min_epoch: this epoch or a later one.
        min_watermark: an epoch whose watermark has reached this time.
        wait: the longest wait for `min_epoch` and `min_watermark`, in seconds.
    """

    epoch: int
    as_of: dt.datetime | str
    min_epoch: int
    min_watermark: dt.datetime | str
    wait: float


class RangeChoice(EpochChoice, total=False):
    """A range of keys, or of map keys, and the epoch to read.

    Parameters:
        closed: the bounds that are in the range: "left", the default, "right", "both" or "none".
    """

    closed: ClosedBounds


class ScanChoice(RangeChoice, total=False):
    """The keys of a range, or the map keys, to read; without any of these, all of them in order.

    Parameters:
        reverse: from the last to the first.
        limit: the maximum number of them; None for all.
        offset: the number of them to leave out before the first one, 10,000 at most.
    """

    reverse: bool
    limit: int | None
    offset: int


class WatchChoice(TypedDict, total=False):
    """The events of a watched state to yield; without any of these, all of them.

    Parameters:
        key, prefix: only this key, or the keys with this prefix: with the types of the operator, or
            as JSON; None for all keys.
        rows: begin with all present rows; if False, only changes are sent.
        after: the id of the last event that was applied; None for a new consumer.
    """

    key: Any
    prefix: Any
    rows: bool
    after: str | None


class SubmitChoice(TypedDict, total=False):
    """How a submitted job is run.

    Parameters:
        checkpoint: a directory or URL, or a path below the first one that the server allows; by
            default it has the name of the job.
        settings: other arguments of sources and sinks, as "source.orders.path=/data/orders".
        replace: continue a job of that name with this document.
        spark: the master of Spark, which the server has to allow.
        parallelism: shards per operator.
        follow: whether streams are read until the job is stopped; True by default.
        restart: how often it is started again after failures: "10 in 10 minutes" by default.
        trigger, heartbeat: the shortest and the longest time between epochs, as "10 seconds".
        alert_after: the age of the last epoch from which it is shown as too old: "5 minutes" by
            default.
    """

    checkpoint: str
    settings: list[str]
    replace: bool
    spark: str
    parallelism: int
    follow: bool
    restart: str
    trigger: str
    heartbeat: str
    alert_after: str


class WatchEvent(NamedTuple):
    """An event of a watched state.

    Parameters:
        name: "reset", "row", "change" or "epoch": see docs/operate/serving-clients.md.
        id: continues a watch after this event.
        data: its contents.
    """

    name: str
    id: str | None
    data: dict[str, Any]


class Call(NamedTuple):
    """A request."""

    method: str
    path: str
    params: Mapping[str, Any]
    content: bytes | None = None


Step = Call | float
"""A request to send, or seconds to wait."""

Exchange = Generator[Step, Any, T]
"""Steps, and then a result. A sent request yields its answer, or the error of the connection."""


class Retries:
    """Number of times to send a request again while the server is busy or cannot be reached.

    Parameters:
        given: the number that the user chose. None: a few times until the server has answered
            once, since its address may be wrong, and then for longer than a restart takes.
    """

    def __init__(self, given: int | None) -> None:
        use = "give a number of retries, from 0, or None"
        if given is not None and (fault := int_fault(given, use)):
            raise StateTypeError(f"retries={shown(given)}{fault}")
        self._given = given
        self._has_answered = False

    @property
    def most(self) -> int:
        """The largest number of retries of a request."""
        if self._given is not None:
            return self._given
        return _RETRIES_LATER if self._has_answered else _RETRIES_AT_FIRST

    def note_answer(self) -> None:
        """Record that the server has answered."""
        self._has_answered = True


@dataclass
class _Exchanges:
    """Builds the requests of each read, and decodes the answers.

    Parameters:
        url: of the server, for messages.
        functions: process functions, by the name of their operator.
        retries: the number of times to send a request again.
        job_files: the types of served epochs, by their checksum.
        decoders: those of rows, by the checksum of their types, operator and state.
    """

    url: str
    functions: Mapping[str, Process[Any, Any, Any]]
    retries: Retries
    job_files: dict[str, JobFile] = field(default_factory=dict)
    decoders: dict[tuple[str, str, str], StateRows] = field(default_factory=dict)

    def jobs(self) -> Exchange[list[dict[str, Any]]]:
        """Return the jobs that are served.

        Raises:
            QueryError: the server refuses.
            StorageError: it cannot be reached.
        """
        found: list[dict[str, Any]] = (yield from self._sent("GET", "/jobs", {})).json()
        return found

    # ------------------------------------------------------------------------- submitted jobs

    def submitted_jobs(self) -> Exchange[list[dict[str, Any]]]:
        """Return descriptions of the submitted jobs that the token may manage.

        Raises:
            QueryError: the server runs no jobs, or refuses.
            StorageError: it cannot be reached.
        """
        found: list[dict[str, Any]] = (yield from self._sent("GET", _SUBMITTED, {})).json()
        return found

    def submit(
        self, document: Job | str, name: str | None = None, **choice: Unpack[SubmitChoice]
    ) -> Exchange[dict[str, Any]]:
        """Submit a job to `statekit server`, and return its description.

        The same submission is made once. A job of that name with another document is only changed
        with `replace=True`.

        Parameters:
            document: a job, or its document.
            name: of the job at the server; None for the name in the document.
            choice: how it is run: see `SubmitChoice`.

        Raises:
            StateTypeError: the document or an option is not valid or not allowed at the server.
            QueryError: the token may not submit it, or the server runs no jobs.
            StorageError: the server cannot be reached.
        """
        text = document if isinstance(document, str) else document.to_json()
        try:
            form = json.loads(text)
            known_as = form["name"] if name is None else name
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StateTypeError(f"the document of the job cannot be read: {error}") from error
        asked = {"name": known_as, "document": form, **choice}
        return (yield from self._asked(_SUBMITTED, asked))

    def submitted_job(self, name: str) -> Exchange[dict[str, Any]]:
        """Return the description of a submitted job.

        Raises:
            QueryError: there is no such job, or the token may not manage it.
            StorageError: the server cannot be reached.
        """
        found: dict[str, Any] = (yield from self._sent("GET", _submitted(name), {})).json()
        return found

    def start_job(self, name: str, *, anew: bool = False) -> Exchange[dict[str, Any]]:
        """Let a submitted job run, and return its description. The errors are those of
        `submitted_job`.

        Parameters:
            anew: start it also if its checkpoint is gone: it begins anew, and repeats its outputs.
        """
        params = {"anew": "true"} if anew else {}
        return (yield from self._asked(_submitted(name, "start"), None, params))

    def stop_job(self, name: str) -> Exchange[dict[str, Any]]:
        """Stop a submitted job after its epoch, and return its description. The errors are those of
        `submitted_job`.
        """
        return (yield from self._asked(_submitted(name, "stop"), None))

    def restart_job(self, name: str) -> Exchange[dict[str, Any]]:
        """Let a submitted job run in a new process, and return its description. The errors are
        those of `submitted_job`.
        """
        return (yield from self._asked(_submitted(name, "restart"), None))

    def delete_job(self, name: str) -> Exchange[dict[str, Any]]:
        """Delete a submitted job that was stopped, has failed or has ended, with its log, and
        return its last description. Its checkpoint stays where it is, and the name can be used
        again once the job is gone from `submitted_jobs`.

        Raises:
            StateTypeError: it is to run.
            QueryError, StorageError: as for `submitted_job`.
        """
        return (yield from self._asked(_submitted(name, "delete"), None))

    def rescale_job(self, name: str, parallelism: int) -> Exchange[dict[str, Any]]:
        """Give a submitted job another parallelism, and return its description.

        Raises:
            StateTypeError: there is no such parallelism.
            QueryError, StorageError: as for `submitted_job`.
        """
        asked = {"parallelism": parallelism}
        return (yield from self._asked(_submitted(name, "rescale"), asked))

    def roll_back_job(self, name: str, epoch: int) -> Exchange[dict[str, Any]]:
        """Continue a submitted job from an earlier epoch, and return its description. `done` has
        the result, once the server has rolled it back.

        Raises:
            StateTypeError: another operation of the job is not done yet.
            QueryError, StorageError: as for `submitted_job`.
        """
        asked = {"epoch": epoch, "id": unique_id()}
        return (yield from self._asked(_submitted(name, "rollback"), asked))

    def save_job(self, name: str, savepoint: str) -> Exchange[dict[str, Any]]:
        """Write a savepoint of a submitted job, and return its description. `done` has the result,
        once it is written.

        Raises:
            StateTypeError: the name is not valid, or another operation is not done yet.
            QueryError, StorageError: as for `submitted_job`.
        """
        asked = {"name": savepoint, "id": unique_id()}
        return (yield from self._asked(_submitted(name, "savepoint"), asked))

    def job_log(self, name: str, lines: int = 200) -> Exchange[list[str]]:
        """Return the last lines that a submitted job has printed on the machine of the server.

        Raises:
            StateTypeError: the number of lines is not from 1 to 10,000.
            QueryError, StorageError: as for `submitted_job`.
        """
        sent = yield from self._sent("GET", _submitted(name, "log"), {"lines": lines})
        return sent.content.decode(errors="replace").splitlines()

    def _asked(
        self, path: str, body: dict[str, Any] | None, params: Mapping[str, Any] | None = None
    ) -> Exchange[dict[str, Any]]:
        """Ask for a change, and return the description of the job."""
        content = b"" if body is None else msgspec.json.encode(body)
        found: dict[str, Any] = (yield from self._sent("POST", path, params or {}, content)).json()
        return found

    # -------------------------------------------------------------------------------- states

    def get(
        self, job: str, operator: str, state: str, key: Any, **epoch: Unpack[EpochChoice]
    ) -> Exchange[Answer[Any]]:
        """Return the value of a state for a key, and the epoch of the value.

        Parameters:
            epoch: which epoch: see `EpochChoice`.

        Raises:
            QueryError: there is no such state or epoch, or the server refuses.
            StateTypeError: it is not a key of the operator.
            StorageError: the server cannot be reached, or cannot read the state now.
        """
        values, number = yield from self._values(job, operator, state, [key], _params(epoch))
        return Answer(values[0], number)

    def get_many(
        self, job: str, operator: str, state: str, keys: Iterable[Any], **epoch: Unpack[EpochChoice]
    ) -> Exchange[Answer[list[Any]]]:
        """Return the values of a state for several keys, all after one epoch, and the epoch.

        The parameters and errors are those of `get`.
        """
        values = yield from self._values(job, operator, state, listed_keys(keys), _params(epoch))
        return values

    def _values(
        self, job: str, operator: str, state: str, keys: list[Any], epoch: Mapping[str, Any]
    ) -> Exchange[Answer[list[Any]]]:
        place = _place(job, operator, state)
        function = self.functions.get(operator)
        if function is None:
            body = b'{"keys":[%b]}' % b",".join(map(_json_key, keys))
            found = (yield from self._sent("POST", f"{place}/query", epoch, body)).json()
            return Answer(found["value"], found["epoch"])
        encoded = function.key_codec.encode_all(keys)
        body = msgspec.msgpack.encode({"keys": encoded})
        answer = yield from self._sent("POST", f"{place}/stored", epoch, body)
        stored = msgspec.msgpack.decode(answer.content)
        types = stored["types"]
        if types not in self.job_files:
            exactly = {"epoch": stored["epoch"], "manifest": stored["manifest"]}
            self.job_files[types] = yield from self._types(job, exactly)
        rows = self.decoders.get((types, operator, state))
        if rows is None:
            rows = StateRows(self.job_files[types], operator, state, function)
            self.decoders[types, operator, state] = rows
        return Answer(_decoded(rows, stored["rows"]), stored["epoch"])

    def get_text(
        self, job: str, operator: str, state: str, text: str, **epoch: Unpack[EpochChoice]
    ) -> Exchange[Answer[Any]]:
        """Return the value of a state for a key in text form, as for `statekit get`, and its epoch.

        The value has JSON types. The other parameters and the errors are those of `get`.
        """
        place = _place(job, operator, state, text)
        answer = yield from self._sent("GET", place, _params(epoch))
        found = answer.json()
        return Answer(None if answer.status == _ABSENT else found["value"], found["epoch"])

    def page(
        self, job: str, operator: str, state: str, params: Mapping[str, Any]
    ) -> Exchange[tuple[list[tuple[Any, Any]], str | None]]:
        """Return the keys and values of a page of a scan, and the cursor of the next one."""
        answer = yield from self._sent("GET", _place(job, operator, state), params)
        found = answer.json()
        items, cursor = found["value"]["items"], found["value"]["cursor"]
        if operator in self.functions and items:
            epoch = {"epoch": found["epoch"], "manifest": found["manifest"]}
            rows = yield from self.rows(job, operator, state, epoch)
            keys = [rows.keys.from_json(key) for key, _ in items]
            values = yield from self._values(job, operator, state, keys, epoch)
            return list(zip(keys, values.value, strict=True)), cursor
        return [(key, value) for key, value in items], cursor

    def entries_page(
        self, job: str, operator: str, state: str, params: Mapping[str, Any]
    ) -> Exchange[tuple[list[Any], dict[str, Any]]]:
        """Return entries of a map as JSON, and the identity of their epoch."""
        found = (yield from self._sent("GET", _place(job, operator, state), params)).json()
        return found["value"], {"epoch": found["epoch"], "manifest": found["manifest"]}

    def count(
        self,
        job: str,
        operator: str,
        state: str,
        start: Any = None,
        end: Any = None,
        prefix: Any = None,
        *,
        key: Any = None,
        **choice: Unpack[RangeChoice],
    ) -> Exchange[Answer[int]]:
        """Return the number of rows of the keys of a range, and its epoch: values, elements or
        entries.

        Parameters:
            start, end, prefix: as for `scan`.
            key: only the entries of this key whose map keys are in the range, or its elements; None
                for all keys.
            choice: which bounds are in the range, and which epoch: see `RangeChoice`.

        Raises:
            QueryError, StateTypeError, StorageError: as for `get`.
        """
        params = _json_params(key=key, start=start, end=end, prefix=prefix)
        closed = choice.pop("closed", None)
        if closed is not None:
            closed_ends(closed)
            params["closed"] = closed
        asked = params | {"count": True} | _params(choice)
        found = (yield from self._sent("GET", _place(job, operator, state), asked)).json()
        return Answer(found["value"], found["epoch"])

    def range_of_texts(
        self, job: str, operator: str, state: str, given: TextRange, *, of_entries: bool
    ) -> Exchange[dict[str, Any]]:
        """Return `start`, `end` and `prefix` of a range of texts, which are parsed as
        `statekit get` parses a key.

        Parameters:
            of_entries: they are map keys.

        Raises:
            StateTypeError: one of them is not a key, or not a map key.
            QueryError, StorageError: as for `get`.
        """
        rows = StateRows((yield from self._types(job, {})), operator, state)
        return (rows.places if of_entries else rows.keys).json_of_texts(given)

    def key_of_text(self, job: str, operator: str, state: str, text: str) -> Exchange[Any]:
        """Return the key of a text, as JSON. The parameters and errors are those of `get_text`."""
        rows = StateRows((yield from self._types(job, {})), operator, state)
        return rows.keys.from_text(text)

    def typed_event(self, followed: _Followed, event: WatchEvent) -> Exchange[WatchEvent]:
        """Return an event with keys and values of the types of the process function."""
        job, operator, state = followed.place
        if event.name == "reset":
            followed.rows = None
        if operator not in self.functions or "key" not in event.data:
            return event
        # The job may have continued with other types.
        with contextlib.suppress(StateTypeError, CorruptCheckpointError):
            if followed.rows is not None:
                return event._replace(data=_typed(followed.rows, event.data))
        followed.rows = yield from self.rows(job, operator, state, {})
        return event._replace(data=_typed(followed.rows, event.data))

    def rows(
        self, job: str, operator: str, state: str, epoch: Mapping[str, Any]
    ) -> Exchange[StateRows]:
        """Return the decoder of a state's rows, with the types of its process function."""
        types = yield from self._types(job, epoch)
        return StateRows(types, operator, state, self.functions[operator])

    def _types(self, job: str, epoch: Mapping[str, Any]) -> Exchange[JobFile]:
        sent = yield from self._sent("GET", f"{_place(job)}/types", epoch)
        return JobFile.from_bytes(sent.content, "the types of the server")

    def file_url(
        self, /, job: str, operator: str, state: str, to: str = "parquet", **epoch: Any
    ) -> Exchange[str]:
        """Return the address of a file with all rows of a state after one epoch, for DuckDB, Polars
        and others that read a file in parts. It stays of this epoch while the job commits others.

        Parameters:
            to: "parquet", "arrow" or "csv".
            epoch: as for `get`; also `wide_ints`, "decimal" or "text", for ints of 2^63 or more.

        Raises:
            QueryError, StorageError: as for `get`.
        """
        of_epoch = _params(epoch)
        of_file = {name: of_epoch.pop(name) for name in ("wide_ints",) if name in of_epoch}
        found = (yield from self._sent("GET", _place(job), of_epoch)).json()
        exactly = {"epoch": found["epoch"], "manifest": found["manifest"]}
        url = _url(httpx.URL(self.url), f"{_place(job, operator, state)}.{quote(to, safe='')}")
        return str(url.copy_merge_params({**exactly, **of_file}))

    def _sent(
        self, method: str, path: str, params: Mapping[str, Any], content: bytes | None = None
    ) -> Exchange[HttpAnswer]:
        """Send a request, again while the server is busy or cannot be reached, and return its
        answer.
        """
        for attempt in count():
            answer = yield Call(method, path, params, content)
            if isinstance(answer, httpx.TransportError):
                if attempt >= self.retries.most:
                    raise _unreachable(self.url, answer) from answer
                answer = None
            else:
                self.retries.note_answer()
                if attempt >= self.retries.most or answer.status not in _BUSY:
                    return _checked(answer)
            yield _pause_s(attempt, answer)
        raise AssertionError("the loop ends with an answer or an error")


def _submitted(name: str, action: str = "") -> str:
    path = f"{_SUBMITTED}/{quote(name, safe='')}"
    return f"{path}/{action}" if action else path


def _decoded(rows: StateRows, stored: list[Any]) -> list[Any]:
    """Return the values of stored rows, as `StateView.stored_rows` returns them."""
    if rows.shape is not RowShape.VALUE:
        return [rows.whole([(key, row) for key, row in own], 0) for own in stored]
    return rows.values(stored)


def _typed(rows: StateRows, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an event with a key, a place and values of the function's types."""
    typed = {**data, "key": rows.keys.from_json(data["key"])}
    if rows.shape is RowShape.ENTRIES and "place" in data:
        typed["place"] = rows.place_from_json(data["place"])
    for name in ("value", "before"):
        if name in data:
            typed[name] = rows.value_of_json(data[name])
    return typed


def _params(epoch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request that choose an epoch.

    Raises:
        StateTypeError: one of them is of NumPy or pandas.
    """
    for name, of in epoch.items():
        if hint := foreign_hint(of):
            raise StateTypeError(f"{name}={shown(of, 100)} is of type {type_name(of)}{hint}")
    return {
        name: of.isoformat() if isinstance(of, dt.datetime) else of for name, of in epoch.items()
    }


def _json_params(**given: Any) -> dict[str, str]:
    """Return parameters with keys, or parts of them, as JSON. Leave out those that are None."""
    return {name: _json_key(of).decode() for name, of in given.items() if of is not None}


def _json_key(key: Any) -> bytes:
    """Return a key, or a part of one, as JSON.

    Raises:
        StateTypeError: JSON cannot hold it.
    """
    try:
        return msgspec.json.encode(_shown_key(key))
    except (TypeError, ValueError, RecursionError) as error:
        raise StateTypeError(
            f"the key {shown(key, 100)} ({type_name(key)}) cannot be sent: {shown_text(error)}. "
            "Give keys as the operator has them, or as JSON can hold them"
        ) from error


def _shown_key(key: Any) -> Any:
    """Return a key, or a part of one, in the form in which the server shows it."""
    match key:
        case enum.Enum():
            return key.value
        case float() | bytes() | dt.timedelta():
            return json_form(key)
        case list() | tuple():
            return list(map(_shown_key, key))
        case set() | frozenset():
            raise TypeError("a set has no order")
    return key


def _place(*names: str) -> str:
    """Return the path of a job, an operator, a state and a key as text, or of the first of them.

    Raises:
        StateTypeError: one of them is not text.
    """
    try:
        return "/" + "/".join(quote(name, safe="") for name in names)
    except (TypeError, UnicodeEncodeError) as error:
        raise StateTypeError(
            f"{shown(names, 100)} cannot be sent: {shown_text(error)}. Give the names of the job, "
            "the operator and the state as text, and the key of get_text as text"
        ) from error


def _answer_of(response: httpx.Response) -> HttpAnswer:
    path, content = response.request.url.path, response.content
    return HttpAnswer(path, response.status_code, response.headers, content)


def _checked(answer: HttpAnswer) -> HttpAnswer:
    """Return an answer without a problem. The answer for an absent key is not a problem.

    Raises:
        StatekitError: the answer is a problem.
    """
    if answer.status < 400:
        return answer
    try:
        problem = answer.json()
        kind, detail = str(problem["kind"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        text = answer.content[:200].decode(errors="replace")
        kind, detail = "http", f"{answer.status}: {text}"
    if kind == "absent":
        return answer
    # The server has further kinds of its own.
    raise (class_of_kind(kind) or QueryError)(f"{answer.path}: {detail}")


def _pause_s(attempt: int, answer: HttpAnswer | None) -> float:
    asked = None if answer is None else answer.headers.get("retry-after")
    pause = _FIRST_PAUSE_S * 2**attempt
    return min(_LONGEST_PAUSE_S, float(asked) if asked and asked.isdecimal() else pause)


def _unreachable(url: object, error: Exception) -> StorageError:
    return StorageError(
        f"the server at {url} cannot be reached ({error}): check its address, and that it runs"
    )


class _Pages:
    """The pages of a scan of keys.

    Parameters:
        exchanges: send the requests.
        place: the names of the job, the operator and the state.
        bounds: `start`, `end` and `prefix`; None for no bound.
        closed, limit, offset, reverse, epoch: see `ScanChoice`.

    Raises:
        StateTypeError: a bound cannot be sent, `closed` is no choice of bounds, or the limit or the
            offset is not a number from 0 on.
    """

    def __init__(
        self,
        exchanges: _Exchanges,
        place: tuple[str, str, str],
        bounds: Mapping[str, Any],
        *,
        closed: ClosedBounds = "left",
        reverse: bool = False,
        limit: int | None = None,
        offset: int = 0,
        **epoch: Unpack[EpochChoice],
    ) -> None:
        for name, given in (("limit", limit), ("offset", offset)):
            use = "give a number of keys or entries, at least 0"
            if given is not None and (fault := int_fault(given, use)):
                raise StateTypeError(f"{name}={shown(given)}{fault}")
        closed_ends(closed)
        self._exchanges, self._place, self._left = exchanges, place, limit
        self._closed, self._reverse = closed, reverse
        # What all requests have, and what only the first one or only later ones have.
        self._same: dict[str, Any] = {**_json_params(**bounds), "closed": closed}
        self._same |= {"reverse": True} if reverse else {}
        self._own: dict[str, Any] = _params(epoch) | ({"offset": offset} if offset else {})
        self.has_ended = limit == 0

    def next_page(self) -> Exchange[list[tuple[Any, Any]]]:
        """Return the keys and values of the next page."""
        limit = _PAGE_ROWS if self._left is None else min(self._left, _PAGE_ROWS)
        found = yield from self._read(self._same | self._own | {"limit": limit}, limit)
        if self._left is not None:
            self._left -= len(found)
            self.has_ended = self.has_ended or not self._left
        return found

    def _read(self, params: dict[str, Any], limit: int) -> Exchange[list[tuple[Any, Any]]]:
        found, cursor = yield from self._exchanges.page(*self._place, params)
        self.has_ended = cursor is None
        self._own = {"cursor": cursor}
        return found


class _EntryPages(_Pages):
    """The pages of a scan of the entries of one key. Each continues after the last map key.

    Parameters:
        key: the key. The others are those of `_Pages`.
    """

    def __init__(
        self,
        exchanges: _Exchanges,
        place: tuple[str, str, str],
        key: Any,
        bounds: Mapping[str, Any],
        **choice: Unpack[ScanChoice],
    ) -> None:
        super().__init__(exchanges, place, bounds, **choice)
        self._same["key"] = _json_key(key).decode()

    def _read(self, params: dict[str, Any], limit: int) -> Exchange[list[tuple[Any, Any]]]:
        found, epoch = yield from self._exchanges.entries_page(*self._place, params)
        self.has_ended = len(found) < limit
        if found:
            # The other bound stays as it is.
            last, kept = ("end", "left") if self._reverse else ("start", "right")
            is_kept = closed_ends(self._closed)[0 if self._reverse else 1]
            self._same["closed"] = kept if is_kept else "none"
            self._same[last] = _json_key(found[-1][0]).decode()
        self._own = epoch
        operator = self._place[1]
        if operator not in self._exchanges.functions or not found:
            return [(key, value) for key, value in found]
        job, _, state = self._place
        rows = yield from self._exchanges.rows(job, operator, state, epoch)
        return [(rows.place_from_json(key), rows.value_of_json(value)) for key, value in found]


class _Followed:
    """A stream of events that is connected again when it breaks.

    Parameters:
        place: the names of the job, the operator and the state.
        retries: the number of reconnections without an event in between.
        key, prefix, rows, after: see `WatchChoice`.

    Raises:
        StateTypeError: a key cannot be sent, or `after` is not the id of an event.
    """

    def __init__(
        self,
        place: tuple[str, str, str],
        retries: Retries,
        *,
        key: Any = None,
        prefix: Any = None,
        rows: bool = True,
        after: Any = None,
    ) -> None:
        if after is not None and not (isinstance(after, str) and _VISIBLE.fullmatch(after)):
            raise StateTypeError(
                f"after={shown(after, 100)}: give the id of the last event that was applied "
                "(WatchEvent.id), or None"
            )
        self.place, self.path = place, _place(*place)
        self.params = _json_params(key=key, prefix=prefix, rows=None if rows else False)
        self.rows: StateRows | None = None
        """The decoder of its rows, with the types of the process function; None if not known."""
        self._after: str | None = after
        self._retries, self._attempt = retries, 0
        self._fields: dict[str, str] = {}

    def headers(self) -> dict[str, str]:
        """Return the headers of the next connection."""
        self._fields = {}
        last = {} if self._after is None else {"Last-Event-ID": self._after}
        return {"Accept": "text/event-stream", **last}

    def line(self, line: str) -> WatchEvent | None:
        """Return the event that this line completes, if it is for the consumer; else None."""
        if line:
            name, _, of = line.partition(": ")
            if name:
                self._fields[name] = of
            return None
        fields, self._fields = self._fields, {}
        if fields.get("event", "end") == "end":
            return None
        self._attempt = 0
        self._retries.note_answer()
        self._after = fields.get("id") or self._after
        return WatchEvent(fields["event"], fields.get("id"), json.loads(fields["data"]))

    def check_answer(self, answer: HttpAnswer) -> None:
        """Check that the server refused a connection only for a time.

        Raises:
            StatekitError: the server refused it for good, or too often.
        """
        self._retries.note_answer()
        if answer.status not in _BUSY or self._attempt >= self._retries.most:
            _checked(answer)

    def pause_s(self, url: object, error: Exception | None) -> float:
        """Return the seconds to wait before the next connection.

        Raises:
            StorageError: there were too many connections.
        """
        if error is not None and self._attempt >= self._retries.most:
            raise _unreachable(url, error) from error
        self._attempt += 1
        return _pause_s(self._attempt, None)


class _Client:
    """The part of `Client` and `AsyncClient` that does not depend on how requests are sent."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        functions: Functions = (),
        timeout: Any = "10 seconds",
        retries: int | None = None,
    ) -> None:
        self._retries = Retries(retries)
        options = _http_options(url, token, timeout)
        self._exchanges = _Exchanges(url, functions_by_operator(functions), self._retries)
        self._open(url, options)

    def _open(self, url: str, options: dict[str, Any]) -> None:
        """Make the HTTP clients, which connect with the first request.

        Parameters:
            options: of a client of httpx.
        """
        raise NotImplementedError


def _blocking(
    exchange: Callable[Concatenate[_Exchanges, P], Exchange[T]],
) -> Callable[Concatenate[Client, P], T]:
    """Return the method of `Client` that sends the requests of a read."""

    @wraps(exchange)
    def read(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(exchange(self._exchanges, *args, **kwargs))

    return read


class Client(_Client, Closing):
    """Reads the state that a server serves.

    Parameters:
        url: of the server.
        token: that the server knows.
        functions: process functions, for typed keys and values, as for `Replica`. Without them,
            keys and values have JSON types.
        timeout: the longest wait for one answer; a timedelta or text.
        retries: number of times to send a request again while the server is busy or cannot be
            reached. None: 4 times, for 1.5 s, until the server has answered once, and then for
            41 s, so that a client outlives a restart of the server.

    Raises:
        StateTypeError: an argument is not valid.
    """

    _http: httpx.Client
    _plain: PlainRequests | None = None

    def _open(self, url: str, options: dict[str, Any]) -> None:
        self._http = httpx.Client(**options)
        if is_plain(url):
            base = self._http.base_url
            self._plain = PlainRequests(base, options["headers"], options["timeout"])

    jobs = _blocking(_Exchanges.jobs)
    submitted_jobs = _blocking(_Exchanges.submitted_jobs)
    submit = _blocking(_Exchanges.submit)
    submitted_job = _blocking(_Exchanges.submitted_job)
    start_job = _blocking(_Exchanges.start_job)
    stop_job = _blocking(_Exchanges.stop_job)
    delete_job = _blocking(_Exchanges.delete_job)
    restart_job = _blocking(_Exchanges.restart_job)
    rescale_job = _blocking(_Exchanges.rescale_job)
    roll_back_job = _blocking(_Exchanges.roll_back_job)
    save_job = _blocking(_Exchanges.save_job)
    job_log = _blocking(_Exchanges.job_log)
    get = _blocking(_Exchanges.get)
    get_text = _blocking(_Exchanges.get_text)
    get_many = _blocking(_Exchanges.get_many)
    count = _blocking(_Exchanges.count)
    range_of_texts = _blocking(_Exchanges.range_of_texts)
    key_of_text = _blocking(_Exchanges.key_of_text)
    file_url = _blocking(_Exchanges.file_url)

    def scan(
        self,
        job: str,
        operator: str,
        state: str,
        start: Any = None,
        end: Any = None,
        prefix: Any = None,
        **choice: Unpack[ScanChoice],
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the keys of a state in order, with their values, all after one epoch.

        Keys and values have the types of the process function, if the client has it; otherwise
        they have JSON types.

        Parameters:
            start, end: bounds of keys; None for no bound. The end is left out, unless `closed` says
                otherwise.
            prefix: only keys that begin with this text, or with these first parts.
            choice: which bounds are in the range, how many keys, and which epoch: see `ScanChoice`.

        Raises:
            QueryError: as for `get`, or the epoch is no longer kept.
            StateTypeError: a bound, the limit or the offset is not valid.
            StorageError: as for `get`.
        """
        bounds = {"start": start, "end": end, "prefix": prefix}
        pages = _Pages(self._exchanges, (job, operator, state), bounds, **choice)
        while not pages.has_ended:
            yield from self._run(pages.next_page())

    def entries(
        self,
        job: str,
        operator: str,
        state: str,
        key: Any,
        start: Any = None,
        end: Any = None,
        prefix: Any = None,
        **choice: Unpack[ScanChoice],
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the entries of a map for a key in the order of their map keys, all after one epoch.

        Parameters:
            start, end, prefix, choice: as for `scan`, of map keys.

        Raises:
            QueryError: as for `scan`; the state is not a map; or, with the process function, its
                values have several stored types.
            StateTypeError, StorageError: as for `scan`.
        """
        bounds = {"start": start, "end": end, "prefix": prefix}
        pages = _EntryPages(self._exchanges, (job, operator, state), key, bounds, **choice)
        while not pages.has_ended:
            yield from self._run(pages.next_page())

    def follow(
        self, job: str, operator: str, state: str, **choice: Unpack[WatchChoice]
    ) -> Iterator[WatchEvent]:
        """Yield the events of a state, of one key or of the keys with a prefix, without end.

        If the connection breaks, the client connects again and continues after the last event. The
        `key`, `place`, `value` and `before` of an event have the types of the process function, if
        the client has it; otherwise they have JSON types.

        Parameters:
            choice: which events: see `WatchChoice`.

        Raises:
            QueryError: there is no such state, or the server refuses.
            StateTypeError: `after` is not the id of an event.
            StorageError: the server cannot be reached again.
        """
        followed = _Followed((job, operator, state), self._retries, **choice)
        while True:
            broken: Exception | None = None
            try:
                with self._http.stream(
                    "GET", followed.path, params=followed.params, headers=followed.headers()
                ) as answer:
                    if answer.status_code >= 400:
                        answer.read()
                        followed.check_answer(_answer_of(answer))
                    else:
                        for line in answer.iter_lines():
                            if (event := followed.line(line)) is not None:
                                yield self._run(self._exchanges.typed_event(followed, event))
            except httpx.TransportError as error:
                broken = error
            sleep_s(followed.pause_s(self._http.base_url, broken))

    def _run(self, exchange: Exchange[T]) -> T:
        answer: HttpAnswer | Exception | None = None
        while True:
            try:
                step = exchange.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, float):
                sleep_s(step)
                continue
            try:
                answer = self._answered(step)
            except httpx.TransportError as error:
                answer = error

    def _answered(self, call: Call) -> HttpAnswer:
        if self._plain is not None:
            url = _url(self._http.base_url, call.path)
            if call.params:
                url = url.copy_merge_params(call.params)
            answer = self._plain.send(call.method, url.raw_path, call.content)
            if answer.status not in _REDIRECTS:
                return answer
        return _answer_of(self._http.send(_request(self._http, call)))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        if self._plain is not None:
            self._plain.close()


def _awaited(
    exchange: Callable[Concatenate[_Exchanges, P], Exchange[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """Return the method of `AsyncClient` that sends the requests of a read."""

    @wraps(exchange)
    async def read(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(exchange(self._exchanges, *args, **kwargs))

    return read


class AsyncClient(_Client):
    """The same as `Client`, for an asyncio event loop."""

    _http: httpx.AsyncClient

    def _open(self, url: str, options: dict[str, Any]) -> None:
        self._http = httpx.AsyncClient(**options)

    jobs = _awaited(_Exchanges.jobs)
    submitted_jobs = _awaited(_Exchanges.submitted_jobs)
    submit = _awaited(_Exchanges.submit)
    submitted_job = _awaited(_Exchanges.submitted_job)
    start_job = _awaited(_Exchanges.start_job)
    stop_job = _awaited(_Exchanges.stop_job)
    delete_job = _awaited(_Exchanges.delete_job)
    restart_job = _awaited(_Exchanges.restart_job)
    rescale_job = _awaited(_Exchanges.rescale_job)
    roll_back_job = _awaited(_Exchanges.roll_back_job)
    save_job = _awaited(_Exchanges.save_job)
    job_log = _awaited(_Exchanges.job_log)
    get = _awaited(_Exchanges.get)
    get_text = _awaited(_Exchanges.get_text)
    get_many = _awaited(_Exchanges.get_many)
    count = _awaited(_Exchanges.count)
    range_of_texts = _awaited(_Exchanges.range_of_texts)
    key_of_text = _awaited(_Exchanges.key_of_text)
    file_url = _awaited(_Exchanges.file_url)

    async def scan(
        self,
        job: str,
        operator: str,
        state: str,
        start: Any = None,
        end: Any = None,
        prefix: Any = None,
        **choice: Unpack[ScanChoice],
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Yield the keys of a state in order, with their values. See `Client.scan`."""
        bounds = {"start": start, "end": end, "prefix": prefix}
        pages = _Pages(self._exchanges, (job, operator, state), bounds, **choice)
        while not pages.has_ended:
            for item in await self._run(pages.next_page()):
                yield item

    async def entries(
        self,
        job: str,
        operator: str,
        state: str,
        key: Any,
        start: Any = None,
        end: Any = None,
        prefix: Any = None,
        **choice: Unpack[ScanChoice],
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Yield the entries of a map for a key in order. See `Client.entries`."""
        bounds = {"start": start, "end": end, "prefix": prefix}
        pages = _EntryPages(self._exchanges, (job, operator, state), key, bounds, **choice)
        while not pages.has_ended:
            for item in await self._run(pages.next_page()):
                yield item

    async def follow(
        self, job: str, operator: str, state: str, **choice: Unpack[WatchChoice]
    ) -> AsyncIterator[WatchEvent]:
        """Yield the events of a state without end. See `Client.follow`."""
        followed = _Followed((job, operator, state), self._retries, **choice)
        while True:
            broken: Exception | None = None
            try:
                async with self._http.stream(
                    "GET", followed.path, params=followed.params, headers=followed.headers()
                ) as answer:
                    if answer.status_code >= 400:
                        await answer.aread()
                        followed.check_answer(_answer_of(answer))
                    else:
                        async for line in answer.aiter_lines():
                            if (event := followed.line(line)) is not None:
                                yield await self._run(self._exchanges.typed_event(followed, event))
            except httpx.TransportError as error:
                broken = error
            await asyncio.sleep(followed.pause_s(self._http.base_url, broken))

    async def _run(self, exchange: Exchange[T]) -> T:
        answer: HttpAnswer | Exception | None = None
        while True:
            try:
                step = exchange.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, float):
                await asyncio.sleep(step)
                continue
            try:
                answer = _answer_of(await self._http.send(_request(self._http, step)))
            except httpx.TransportError as error:
                answer = error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@lru_cache(maxsize=256)
def _url(base: httpx.URL, path: str) -> httpx.URL:
    """Return the address of a path below that of a server. Cached: parsing an address takes longer
    than sending the request.
    """
    return base.copy_with(raw_path=base.raw_path.rstrip(b"/") + path.encode())


def _request(http: httpx.Client | httpx.AsyncClient, call: Call) -> httpx.Request:
    url, params = _url(http.base_url, call.path), call.params or None
    return http.build_request(call.method, url, params=params, content=call.content)


def _http_options(url: str, token: Any, timeout: Any) -> dict[str, Any]:
    timeout_s = duration_to_micros(timeout, "timeout") / 1e6
    if token is not None and not isinstance(token, str):
        raise StateTypeError(f"token= is of type {type_name(token)}: give the token as text")
    if token is not None and not _VISIBLE.fullmatch(token):
        raise StateTypeError(
            "a token has letters, digits and signs alone: remove blanks and line breaks"
        )
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # Certificates take 20 ms to read.
    verify = _scheme(url) != "http"
    return {
        "base_url": url,
        "headers": headers,
        "timeout": timeout_s,
        "verify": verify,
        "follow_redirects": True,
    }


def _scheme(url: object) -> str:
    """Return the scheme of a server's address.

    Raises:
        StateTypeError: it is not an HTTP address.
    """
    try:
        parsed = httpx.URL(url) if isinstance(url, str) else None
    except httpx.InvalidURL:
        parsed = None
    if parsed is None or parsed.scheme not in ("http", "https") or not parsed.host:
        raise StateTypeError(
            f"url={shown(url, 100)}: give the address of a server, such as http://localhost:8321"
        )
    return parsed.scheme
