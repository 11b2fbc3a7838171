"""A job that asks a service over HTTP, for tests that kill it and for Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import httpx

import statekit as sk
from statekit.functions.failed_record import OnError

__all__ = ["EPOCHS", "EPOCH_SIZE", "Answered", "Asked", "Numbered", "job", "numbered", "records"]

EPOCHS, EPOCH_SIZE = 12, 25


class Asked(NamedTuple):
    key: str
    name: str


class Answered(NamedTuple):
    key: str
    name: str
    answer: str


class Numbered(NamedTuple):
    key: str
    name: str
    number: int


def answer_from(url: str) -> Callable[[Asked, httpx.AsyncClient], Awaitable[Answered]]:
    """Return a function that asks a service."""

    async def answer(record: Asked, http: httpx.AsyncClient) -> Answered:
        response = await http.get(f"{url}/{record.name}")
        response.raise_for_status()
        return Answered(record.key, record.name, response.text)

    return answer


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        limits=httpx.Limits(max_connections=None, keepalive_expiry=None), timeout=None
    )


@sk.process(key="key")
def count(answered: Answered, seen: sk.ValueState[int]) -> Iterator[Numbered]:
    seen.update((seen.get() or 0) + 1)
    yield Numbered(answered.key, answered.name, seen.get() or 0)


@sk.process(key="key", concurrency=8)
async def numbered(asked: Asked, seen: sk.ValueState[int]) -> list[Numbered]:
    """Number the records of a key, with pauses that differ from record to record."""
    number = (seen.get() or 0) + 1
    await asyncio.sleep(int(asked.name[1:]) % 5 / 1_000)
    seen.update(number)
    return [Numbered(asked.key, asked.name, number)]


def job(url: str, *, concurrency: int = 10, on_error: OnError = "fail") -> sk.Job:
    """Return a job with two readers of the answers of a service."""
    declared = sk.Job("services")
    answers = declared.source("asked", Asked).map_async(
        answer_from(url), name="answers", client=_client, concurrency=concurrency, on_error=on_error
    )
    answers.sink("answered")
    answers.process(count).sink("counted")
    if on_error == "collect":
        answers.errors.sink("failed")
    return declared


def records() -> list[Asked]:
    """Return the records of all epochs."""
    return [Asked(f"k{number % 7}", f"n{number}") for number in range(EPOCHS * EPOCH_SIZE)]


def run(home: Path, url: str, ready: Connection) -> None:
    """Run the job in this process until its input ends. Sinks are files."""
    ready.send("begins")
    outputs = {name: sk.sinks.parquet(home / name) for name in ("answered", "counted")}
    job(url).run(
        {"asked": records()}, outputs=outputs, checkpoint=home / "checkpoint", epoch_size=EPOCH_SIZE
    )
