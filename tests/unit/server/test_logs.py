"""Logs: no request writes a line of its own, and the access log can be switched on."""

from __future__ import annotations

import io
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from statekit.server.logs import EscapedRecords
from tests.support.served import Sale, sell, server
from tests.unit.server.test_access import token_file

LINE = "2026-01-01 ERROR statekit.server: everything was deleted"
BREAKS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
CONTROLS = ["\x00", "\x07", "\x08", "\x1b[31m", "\x1b]0;title\x07", "\x7f", "\x9b31m", "\u202e"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, [Sale("rome", "tea", 400)])
    return home


@contextmanager
def logged(*names: str) -> Iterator[io.StringIO]:
    """Collect what loggers write, as a log file has it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield stream
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


ALL = ("statekit.access", "statekit.server", "uvicorn.error", "asyncio")


def test_no_request_writes_a_line_of_its_own(home: Path) -> None:
    evil = [f"x{each}{LINE}" for each in (*BREAKS, *CONTROLS)]
    with (
        logged(*ALL) as log,
        server({"shop": home}) as address,
        httpx.Client(base_url=address, timeout=30) as client,
    ):
        for text in evil:
            quoted = quote(text, safe="")
            for path in (
                quoted,
                f"{quoted}/sales/total/rome",
                f"shop/{quoted}/total/rome",
                f"shop/sales/{quoted}/rome",
                f"shop/sales/total/{quoted}",
                f"shop/sales/total?key={quoted}",
                f"shop/sales/total?cursor={quoted}",
                f"shop/sales/total?{quoted}=1",
                f"assets/{quoted}",
            ):
                client.get(f"/{path}")
            client.post("/sql", json={"job": text, "sql": text})
            client.post("/shop/query", content=text.encode())
        send_raw(client, b"GET /x\x1b[31m HTTP/1.1\r\nHost: x\r\n\r\n")
        send_raw(client, b"GET /\xe2\x80\xa8x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        send_raw(client, b"EVIL\x85LINE / HTTP/1.1\r\n\r\n")
    text = log.getvalue()
    assert len(text.splitlines()) == text.count("\n") >= len(evil) * 11
    assert all(line.startswith(ALL) for line in text.splitlines())
    assert all(line.isprintable() for line in text.splitlines())


def send_raw(client: httpx.Client, data: bytes) -> None:
    address = client.base_url.host, client.base_url.port or 80
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(data)
        connection.recv(1_000)


@pytest.mark.parametrize("break_", BREAKS)
def test_an_error_that_quotes_a_request_has_no_line_of_its_own(break_: str) -> None:
    logger = logging.getLogger("statekit.server.tried")
    escaping = EscapedRecords()
    logger.addFilter(escaping)
    try:
        with logged(logger.name) as log:
            try:
                try:
                    raise ValueError(f"inner{break_}{LINE}")
                except ValueError as error:
                    raise LookupError(f"outer{break_}{LINE}") from error
            except LookupError as error:
                logger.warning("failed: %s", error, exc_info=error)
                group = ExceptionGroup(f"several{break_}{LINE}", [error])
                logger.warning("failed", exc_info=group)
    finally:
        logger.removeFilter(escaping)
    lines = log.getvalue().splitlines()
    assert not any(line.strip(" |").startswith(LINE) for line in lines)
    assert any("LookupError: outer" in line and LINE in line for line in lines)
    assert any("ValueError: inner" in line and LINE in line for line in lines)


def test_an_error_that_cannot_be_printed_is_logged() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    error = Unprintable()
    record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), (type(error), error, None))
    assert EscapedRecords().filter(record)
    assert "Unprintable" in (record.exc_text or "")


def test_the_access_log_names_caller_and_answer(home: Path, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.json", ("reports", "own", ["*"]))
    trusted = {"trusted_proxy": ["127.0.0.1"], "tokens": tokens}
    with logged("statekit.access") as log, server({"shop": home}, **trusted) as address:
        given = {"X-Forwarded-For": "192.0.2.7"}
        own = {"Authorization": "Bearer own", **given}
        httpx.get(f"{address}/shop/sales/total/rome?epoch=0", headers=own)
        httpx.get(f"{address}/shop/sales/to tal/rome", headers=given)
    lines = [re.sub(r"[\d.]+ ms", "… ms", line) for line in log.getvalue().splitlines()]
    assert lines[-2:] == [
        "statekit.access GET /shop/sales/total 200 … ms 192.0.2.7 reports",
        "statekit.access GET /shop/sales/to%20tal 401 … ms 192.0.2.7 -",
    ]


@pytest.mark.parametrize("options", [[], ["--access-log"]])
def test_the_command_writes_the_access_log_if_it_is_asked_to(
    home: Path, options: list[str]
) -> None:
    command = [sys.executable, "-m", "statekit.cli", "serve", str(home), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            address = running.stdout.readline().split()[-1]
            httpx.get(f"{address}/sales/sales/total/rome%0Aevil")
            running.terminate()
            lines = running.communicate(timeout=30)[0].splitlines()
        finally:
            running.kill()
    assert len(lines) == len(options)
    if options:
        assert re.fullmatch(r"[\d-]+ [\d:,]+ GET /sales/sales/total 404 [\d.]+ ms .*", lines[0])
