"""Lifetimes of single values in a store, by examples and against plain Python."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.testing import check
from tests.support.instants import after, at

TTL = sk.TTL("10 seconds", clock="event")


class Step(NamedTuple):
    key: str
    at: dt.datetime
    kind: str = "get"
    ttl: dt.timedelta | None = None


def kind_of(kind: str) -> Any:
    return lambda step: step.kind == kind


def store_job(**options: Any) -> sk.Job:
    job = sk.Job("lifetimes")
    store: Any = job.add(sk.KVStore("kv", key=str, value=int, **options))
    cell: dict[str, Any] = {"key": "key"}
    if "sort" in options:
        cell["sort"] = lambda step: 1
    steps = job.source("steps", Step)
    one = {"value": lambda step: 1}
    store.put(steps.filter(kind_of("put"), name="puts"), **cell, **one, ttl="ttl").sink("put")
    plain = steps.filter(kind_of("plain"), name="plain")
    store.put(plain, **cell, **one).sink("plain")
    store.expire(steps.filter(kind_of("expire"), name="expiries"), **cell, ttl="ttl").sink("expire")
    store.persist(steps.filter(kind_of("persist"), name="kept"), **cell).sink("persist")
    store.get(steps.filter(kind_of("get"), name="gets"), **cell).sink("got")
    return job


def gets(*seconds: int) -> list[Step]:
    return [Step("k", at(second)) for second in seconds]


@pytest.mark.parametrize("options", [{}, {"sort": int}], ids=["single", "sorted"])
@pytest.mark.parametrize(
    ("steps", "asked", "found"),
    [
        ([Step("k", at(0), "put", after(3))], (2, 3), [True, False]),
        ([Step("k", at(0), "put", after(30))], (29, 30), [True, False]),
        ([Step("k", at(0), "put", None)], (9, 10), [True, False]),
        ([Step("k", at(0), "plain"), Step("k", at(1), "expire", after(2))], (2, 3), [True, False]),
        ([Step("k", at(0), "plain"), Step("k", at(5), "expire")], (14, 15), [True, False]),
        ([Step("k", at(0), "plain"), Step("k", at(1), "expire", after(0))], (1, 2), [False, False]),
        ([Step("k", at(0), "plain"), Step("k", at(5), "persist")], (15, 9_000), [True, True]),
        (
            [
                Step("k", at(0), "plain"),
                Step("k", at(1), "persist"),
                Step("k", at(2), "put", after(1)),
            ],
            (2, 3),
            [True, False],
        ),
        ([Step("k", at(0), "put", after(30)), Step("k", at(1), "plain")], (29, 30), [True, False]),
        ([Step("k", at(0), "put", after(2)), Step("k", at(1), "plain")], (10, 11), [True, False]),
    ],
)
@pytest.mark.parametrize("epoch_size", [1, 9])
def test_a_value_expires_when_its_own_lifetime_is_over(
    steps: list[Step], asked: tuple[int, ...], found: list[bool], options: Any, epoch_size: int
) -> None:
    job = store_job(event_time="at", ttl=TTL, **options)
    done = job.run({"steps": [*steps, *gets(*asked)]}, epoch_size=epoch_size, parallelism=2)
    answers = sorted(done.outputs["got"], key=lambda answer: answer.at)
    assert [answer.value is not None for answer in answers] == found


def test_answers_say_whether_there_was_a_value() -> None:
    job = store_job(event_time="at", ttl=TTL)
    steps = [
        Step("k", at(0), "plain"),
        Step("k", at(1), "expire", after(1)),
        Step("k", at(3), "expire", after(1)),
        Step("k", at(4), "persist"),
    ]
    done = job.run({"steps": steps})
    assert [answer.exists for answer in done.outputs["expire"]] == [True, False]
    assert [answer.exists for answer in done.outputs["persist"]] == [False]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"event_time": "at", "lateness": "5 s"}, {"sort": int}])
def test_lifetimes_are_what_plain_python_says(options: Any) -> None:
    ttl = TTL if "event_time" in options else sk.TTL("10 seconds")
    check(store_job(ttl=ttl, **options), holds=["plain Python"], depth="quick")


def test_a_lifetime_needs_a_store_with_a_ttl() -> None:
    with pytest.raises(sk.StateTypeError, match="put needs a store whose values expire"):
        store_job()


@pytest.mark.parametrize("wrong", [5, None, "1 hour"])
def test_a_lifetime_that_is_none_is_refused(wrong: Any) -> None:
    job = sk.Job("lifetimes")
    store: Any = job.add(sk.KVStore("kv", key=str, value=int, ttl=sk.TTL("1 day")))
    with pytest.raises(sk.StateTypeError, match=r"ttl=|no field '1 hour'"):
        store.expire(job.source("steps", Step), key="key", ttl=wrong)
