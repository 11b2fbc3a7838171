"""A source of lines from a TCP socket, for trying things."""

from __future__ import annotations

import logging
import socket as sockets
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from statekit.connectors.growing_pauses import GrowingPauses
from statekit.declared_call import declarable
from statekit.errors import ConnectorError, StateTypeError
from statekit.records.union import Records
from statekit.shown import shown_text
from statekit.sources.decoding.decoder import Decoder
from statekit.sources.decoding.json_decoding import JsonDecoder
from statekit.sources.source import Offset, Offsets, Source

_logger = logging.getLogger("statekit.sources")

_LINES_MAX = 100_000
"""The number of lines in memory. If no epoch takes them, the socket is not read."""

_LINE_BYTES_MAX = 16 << 20
_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.2
"""How often a connection that is silent looks whether it is closed."""


@dataclass
class SocketSource(Source):
    """Lines from a TCP server. See `socket`.

    Parameters:
        host: of the server.
        port: of the server.
        format: of the lines.
        connect_s: how long to try to connect, in seconds.
    """

    host: str
    port: int
    format: Literal["json", "text"] = "json"
    connect_s: float = 10.0
    _connection: _Connection | None = field(default=None, init=False, repr=False, compare=False)
    _first: int = field(default=0, init=False, repr=False, compare=False)
    _kept: deque[bytes] = field(default_factory=deque, init=False, repr=False, compare=False)

    def open(self, *, reads_here: bool) -> None:
        if not reads_here:
            raise StateTypeError(
                f"source {self._place}: a socket is read in the process of the job, and tasks of "
                "Spark cannot read it: use job.run, or write the lines to files or Kafka"
            )
        self._connection = _Connection(self._place, self.host, self.port, self.connect_s)

    @property
    def _place(self) -> str:
        return f"{self.host}:{self.port}"

    def earliest(self) -> Offsets:
        return {"all": 0}

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        assert self._connection is not None, "it is open"
        begin = start["all"]
        while self._kept and self._first < begin:  # they are committed
            self._kept.popleft()
            self._first += 1
        if not self._kept:
            self._first = begin
        if len(self._kept) < limit:
            wait = 0.0 if self._kept else wait_s
            self._kept.extend(self._connection.take(limit - len(self._kept), wait))
        return {"all": begin + min(limit, len(self._kept))}

    def read(self, partition: str, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        begin = start or 0
        lines = list(self._kept)[max(0, begin - self._first) : max(0, end - self._first)]
        if lost := (end - begin) - len(lines):
            _logger.warning(
                "source %s: %s lines of an epoch that had begun before a crash are lost: a socket "
                "cannot be read again",
                self._place,
                lost,
            )
        if lines:
            type_ = pa.binary() if self.format == "json" else pa.string()
            values = lines if self.format == "json" else [_text(line) for line in lines]
            numbers = range(end - len(lines), end)
            yield pa.record_batch({"value": pa.array(values, type_), "__offset": list(numbers)})

    def decoder(self, records: Records, name: str) -> Decoder:
        if self.format == "json":
            return JsonDecoder(records, name)
        return super().decoder(records, name)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


class _Connection:
    """Reads lines from a server in a thread. It connects again when the server closes."""

    def __init__(self, place: str, host: str, port: int, connect_s: float) -> None:
        self._place, self._address, self._connect_s = place, (host, port), connect_s
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._failure: ConnectorError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._read, args=(self._connected(),), name=f"socket {place}", daemon=True
        )
        self._thread.start()

    def take(self, limit: int, wait_s: float) -> list[bytes]:
        """Return lines, as soon as there is one.

        Raises:
            ConnectorError: there is none, and the server does not answer any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._failure, wait_s)
            if not self._lines and self._failure is not None:
                raise self._failure
            taken = [self._lines.popleft() for _ in range(min(limit, len(self._lines)))]
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def _connected(self) -> sockets.socket:
        """Connect, with pauses between tries.

        Raises:
            ConnectorError: the server does not answer.
        """
        pauses = GrowingPauses()
        while True:
            try:
                connection = sockets.create_connection(self._address, self._connect_s)
            except OSError as error:
                failed = f"{self._place}: cannot connect ({shown_text(error)})"
                is_over = pauses.elapsed_s + pauses.next_s > self._connect_s
                if is_over or pauses.wait(self._stopped, failed):
                    raise ConnectorError(
                        f"{failed}. Start the server, then start the job again"
                    ) from error
            else:
                connection.settimeout(_LOOK_S)
                return connection

    def _read(self, connection: sockets.socket) -> None:
        try:
            while True:
                with connection:
                    self._read_connection(connection)
                if self._stopped.is_set():
                    return
                connection = self._connected()
        except ConnectorError as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _read_connection(self, connection: sockets.socket) -> None:
        """Read lines until the server closes, or the source is closed.

        Raises:
            ConnectorError: a line does not end.
        """
        rest = b""
        while not self._stopped.is_set():
            try:
                chunk = connection.recv(_CHUNK_BYTES)
            except TimeoutError:
                continue
            except OSError:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            if not chunk and rest:
                lines.append(rest)
            if len(rest) > _LINE_BYTES_MAX:
                raise ConnectorError(
                    f"{self._place}: a line has more than {_LINE_BYTES_MAX:,} bytes: let "
                    "the server end each record by a line end"
                )
            self._put([line for line in (line.rstrip(b"\r") for line in lines) if line])
            if not chunk:
                return

    def _put(self, lines: list[bytes]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._lines) < _LINES_MAX or self._stopped.is_set())
            self._lines.extend(lines)
            self._changed.notify_all()


@declarable("sources.socket")
def socket(
    host: str, port: int, format: Literal["json", "text"] = "json", *, connect_s: float = 10.0
) -> SocketSource:
    """Return a source of the lines that a TCP server sends, for trying things: `nc -lk 9999`.

    Each line is read at most once. A socket cannot be read again: lines that arrived before a
    crash, and are in no committed epoch, are lost. It is read in the process of the job, so that
    `job.start` on Spark refuses it. If the server closes, the source connects again.

    Parameters:
        host: of the server.
        port: of the server.
        format: `"json"` for a JSON object per line; `"text"` for records with `value: str`.
        connect_s: how long to try to connect, in seconds. Then the job ends with ConnectorError.

    >>> socket("localhost", 9999).format
    'json'
    """
    return SocketSource(host, port, format, connect_s)
