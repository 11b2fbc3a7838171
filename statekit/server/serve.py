"""Serving: runs the server in one process, with uvicorn."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

import uvicorn

from statekit.backend.rocksdb_options import RocksOptions
from statekit.byte_size import size_bytes
from statekit.errors import StatekitError, StateTypeError, StorageError
from statekit.server.admission.access import Access
from statekit.server.admission.hosts import ANY_HOST
from statekit.server.admission.options import JobServerOptions, ServerOptions
from statekit.server.admission.proxies import trusted_networks
from statekit.server.app import RESERVED, Application
from statekit.server.descriptors import exhausted, is_exhausted, raised_limit, sharing
from statekit.server.jobs.disk import Disk
from statekit.server.jobs.priority import prefer_single_reads
from statekit.server.jobs.served_job import ServedJob
from statekit.server.logs import escape_logs, write_logs
from statekit.server.protocol import ProblemProtocol
from statekit.service.job_service import JobService
from statekit.service.submission_limits import SubmissionLimits

_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")

_MEMORY_MIN = 16 * 2**20

_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    # Pages of other sites show and run nothing from here. CORS, which lets a page read, is not
    # affected by this header.
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),  # addresses have keys
]
"""Headers of all answers. uvicorn adds them, also if it refuses a connection."""

_ALIAS = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")


def named_checkpoints(given: Iterable[str]) -> dict[str, str]:
    """Return checkpoints by alias: the text before "=", or the last part of the path.

    Raises:
        StateTypeError: two checkpoints have the same alias.

    >>> named_checkpoints(["bank=s3://state/7", "./site"])
    {'bank': 's3://state/7', 'site': './site'}
    """
    named: dict[str, str] = {}
    for each in given:
        alias, is_named, checkpoint = each.partition("=")
        if not is_named:
            alias, checkpoint = each.rstrip("/").rpartition("/")[2], each
        if alias in named:
            raise StateTypeError(
                f"two checkpoints would be served as {alias!r}: name them, as in NAME=CHECKPOINT"
            )
        named[alias] = checkpoint
    return named


def serve(
    checkpoints: Mapping[str, str],
    options: ServerOptions,
    report: Callable[[str], None],
    service: JobService | None = None,
) -> None:
    """Serve checkpoints, and run jobs, until the process gets SIGTERM or SIGINT.

    Parameters:
        checkpoints: directories or URLs, by alias.
        report: called with a line that has the address, once clients can connect.
        service: runs submitted jobs; None to run none.

    Raises:
        StateTypeError: an alias or an option is not valid.
        StorageError: the port is used by another process.
        StatekitError: a checkpoint cannot be read.
    """
    write_logs(access=options.access_log)
    with bound_socket(options.host, options.port) as listening:
        config = uvicorn_config(checkpoints, options, service)
        port = listening.getsockname()[1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        what = ", ".join([*checkpoints, *([] if service is None else ["submitted jobs"])])
        report(f"serving {what} on http://{host}:{port}")
        StateServer(config).run([listening])


class StateServer(uvicorn.Server):
    """Serves until the process gets SIGTERM or SIGINT. Then event streams end first, and open
    requests after that.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        prefer_single_reads()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        assert isinstance(self.config.app, Application)
        self.config.app.end_streams()
        await super().shutdown(sockets)


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        StorageError: another process has the port, or this machine has no such address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)  # before the address is reported: early callers wait
    except OSError as error:
        listening.close()
        raise StorageError(
            f"the server cannot listen on {host}, port {port} ({error}): give another --port, or "
            "an address of this machine"
        ) from error
    return listening


def job_service(registry: str, options: JobServerOptions) -> JobService:
    """Return the service that runs submitted jobs.

    Parameters:
        registry: the directory or URL of the submitted jobs.

    Raises:
        StateTypeError: an option is missing or not valid.
        StorageError: the registry cannot be reached.
    """
    if not options.allow:
        raise StateTypeError("no document could be run: name the modules with --allow")
    if not options.checkpoints_below:
        raise StateTypeError("no job could have a checkpoint: give --checkpoints-below DIRECTORY")
    limits = SubmissionLimits(
        modules=options.allow,
        checkpoints_below=[_absolute(place) for place in options.checkpoints_below],
        data_below=[_absolute(place) for place in options.data_below],
        secrets=options.secret,
        spark=options.spark,
    )
    return JobService.at(_absolute(registry), options.work, limits)


def _absolute(place: str) -> str:
    return place if "://" in place else os.path.abspath(place)


def uvicorn_config(
    checkpoints: Mapping[str, str], options: ServerOptions, service: JobService | None = None
) -> uvicorn.Config:
    """Open the replicas, and return the uvicorn configuration of the server. Faults of checkpoints
    are raised here, before the server starts.
    """
    if not checkpoints and service is None:
        raise StateTypeError("there is no checkpoint to serve: name at least one")
    _check(checkpoints, options)
    proxies = trusted_networks(options.trusted_proxy)
    escape_logs()
    access = Access(options.tokens)
    disk = Disk(None if options.disk is None else size_bytes(options.disk, "--disk"))
    jobs = _opened(checkpoints, options, disk)
    hosts = _hosts(options, is_open=access.is_open)
    return uvicorn.Config(
        Application(jobs, access, hosts, options, disk, proxies, service),
        headers=_HEADERS,
        http=ProblemProtocol,
        ws="none",
        proxy_headers=False,  # `TrustedProxies` reads them
        limit_concurrency=options.connections,
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=5,
    )


def _opened(
    checkpoints: Mapping[str, str], options: ServerOptions, disk: Disk
) -> dict[str, ServedJob]:
    """Open a replica of each checkpoint. Close all of them if one fails, if the copies are too
    large, or if the process has no descriptor left.
    """
    jobs: dict[str, ServedJob] = {}
    with ExitStack() as opened:
        opened.callback(disk.close)
        rocksdb = RocksOptions()
        if options.memory is not None:
            rocksdb = rocks_options(size_bytes(options.memory, "--memory"))
        rocksdb = sharing(rocksdb, raised_limit(), max(1, len(checkpoints)))
        for alias, checkpoint in checkpoints.items():
            directory = None if options.directory is None else options.directory / alias
            try:
                job = ServedJob(
                    alias, checkpoint, directory, epochs=options.epochs, rocksdb=rocksdb, disk=disk
                )
            except StatekitError as error:
                if is_exhausted(error):
                    raise exhausted(alias, len(jobs), len(checkpoints)) from error
                raise
            opened.callback(job.close)
            jobs[alias] = job
            disk.check()
        opened.pop_all()
    return jobs


def rocks_options(memory_bytes: int) -> RocksOptions:
    """Return options with which all databases of the process together take this much memory.

    Half of it is for the block cache. Write buffers may take one and a half times their limit.

    Raises:
        StateTypeError: the memory is too small.

    >>> options = rocks_options(300 * 2**20)
    >>> options.block_cache_bytes // 2**20, options.write_memory_bytes // 2**20
    (150, 100)
    """
    if memory_bytes < _MEMORY_MIN:
        raise StateTypeError(
            f"{memory_bytes:,} bytes of memory are too little for the copies of the server: give "
            f"{_MEMORY_MIN // 2**20} MB or more (--memory)"
        )
    buffers = memory_bytes // 3
    return RocksOptions(
        block_cache_bytes=memory_bytes // 2,
        write_memory_bytes=buffers,
        write_buffer_bytes=min(32 * 2**20, buffers // 4),
    )


def _check(checkpoints: Mapping[str, str], options: ServerOptions) -> None:
    for alias in checkpoints:
        if not _ALIAS.match(alias) or alias in RESERVED:
            raise StateTypeError(
                f"a job cannot be served as {alias!r}: give another name, as in NAME=CHECKPOINT, "
                "of letters, digits, dots, dashes and underscores"
            )
    for origin in options.allow_origin:
        if not _ORIGIN.fullmatch(origin):
            raise StateTypeError(
                f"{origin!r} is not the origin of a site: give its scheme and host, and its port "
                "if it has one, as in https://example.com"
            )
    if not (options.tokens or options.insecure or is_loopback(options.host)):
        raise StateTypeError(
            f"everyone who reaches {options.host} could read all state: give --tokens FILE, listen "
            "on 127.0.0.1, or say --insecure"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _hosts(options: ServerOptions, *, is_open: bool) -> Sequence[str]:
    """Return the names of the server that requests may use. With tokens, any name is allowed: a
    page of another site has no token.
    """
    if not is_open or options.insecure:
        return [ANY_HOST]
    return ["localhost", "127.0.0.1", "[::1]", options.host, *options.allow_host]
