"""Calls of a real service over HTTP that fails, hangs, and counts its open requests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import statekit as sk
from statekit.functions.failed_record import FailedRecord
from statekit.job.progress import Run
from tests.support.http_service import Service, service
from tests.support.service_job import Answered, Asked, Numbered, answer_from, job

ASKED = [Asked(f"k{number % 3}", f"n{number}") for number in range(60)]


@pytest.fixture
def served() -> Iterator[Service]:
    with service() as running:
        yield running


def _counted(run: Run) -> list[Numbered]:
    return [each for each in run["counted"] if isinstance(each, Numbered)]


def test_each_record_is_asked_for_once_whoever_reads_the_answers(served: Service) -> None:
    run = job(served.url, concurrency=8).run({"asked": ASKED}, parallelism=3)
    assert run["answered"] == [Answered(*asked, asked.name.upper()) for asked in ASKED]
    assert sorted(each.number for each in _counted(run)) == sorted(
        1 + number // 3 for number in range(60)
    )
    assert set(served.asked.values()) == {1}


def test_no_more_requests_are_open_than_allowed_and_connections_are_kept(served: Service) -> None:
    job(served.url, concurrency=8).run({"asked": ASKED}, epoch_size=20)
    assert served.most_open <= 8
    assert served.connections <= 8


def test_requests_that_fail_are_sent_again(served: Service) -> None:
    served.fails["n7"], served.fails["n11"] = 1, 2
    run = job(served.url).run({"asked": ASKED})
    assert run["answered"] == [Answered(*asked, asked.name.upper()) for asked in ASKED]
    assert (served.asked["n7"], served.asked["n11"], served.asked["n12"]) == (2, 3, 1)


def test_requests_without_an_answer_are_collected(served: Service) -> None:
    served.fails["n7"] = 99
    run = job(served.url, on_error="collect").run({"asked": ASKED})
    (failed,) = run["failed"]
    assert isinstance(failed, FailedRecord)
    assert (failed.operator, failed.record) == ("answers", '{"key":"k1","name":"n7"}')
    assert failed.error == "HTTPStatusError"
    assert failed.message.endswith("(4 attempts)")
    assert len(run["answered"]) == 59


def test_a_failed_record_ends_requests_that_hang(served: Service) -> None:
    """Their timeout is longer than the test may run."""
    served.hangs, served.fails["n20"] = {"n1", "n2", "n3"}, 1
    asks = sk.Job("shop")
    asks.source("asked", Asked).map_async(
        answer_from(served.url),
        client=httpx.AsyncClient,
        timeout="10 hours",
        retries=0,
        ordered=False,
        concurrency=10,
    ).sink("answered")
    with pytest.raises(sk.ProcessError, match=r"503.*\(1 attempt\)"):
        asks.run({"asked": ASKED})
