"""A store in event time: operations of a key are in the order of time, whenever they arrive."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.savepoint.restore import import_savepoint
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import MemoryCopies
from tests.support.instants import at
from tests.support.kv_job_runs import StoreRun
from tests.support.kv_jobs import Op, Shape, store_job

LATENESS = 4
"""How late operations may be, in seconds."""


def test_an_operation_that_is_declared_again_before_an_epoch_is_no_new_input() -> None:
    run = StoreRun(["put", "get"], Shape(lateness=LATENESS))
    latest = Op("a", at(21))
    run.epoch({"put": [Op("a", at(16))] * 2})
    run.epoch({"put": [latest], "get": [latest]})
    run.remove("put")
    run.declare("put", 0)
    run.epoch({"put": [latest], "get": [latest]})
    run.drain()


# ----------------------------------------------------------------------------------- by examples


class Step(NamedTuple):
    key: str
    at: dt.datetime
    amount: int


class Ask(NamedTuple):
    key: str
    at: dt.datetime
    as_of: dt.datetime


def history_job(**options: Any) -> sk.Job:
    job = sk.Job("history")
    store = job.add(sk.KVStore("kv", key=str, value=int, event_time="at", **options))
    steps, asks = job.source("steps", Step), job.source("asks", Ask)
    store.put(steps, key="key", value="amount")
    found = store.get(asks, key="key", as_of="as_of")
    found.sink("found")
    store.late(found).sink("late")
    return job


def found(steps: list[Step], asks: list[Ask], **options: Any) -> list[tuple[Any, str]]:
    done = history_job(history="10 seconds").run({"steps": steps, "asks": asks}, **options)
    return [(answer.value, answer.status) for answer in done.outputs["found"]]


def test_a_value_of_the_past_is_found_absent_too_old_or_not_yet() -> None:
    steps = [Step("k", at(10), 1), Step("k", at(20), 2)]
    asked = [(20, 21), (20, 20), (20, 19), (20, 10), (20, 9), (15, 9), (30, 20), (30, 19)]
    asks = [Ask("k", at(now), at(as_of)) for now, as_of in asked]
    answers = {ask[1:]: said for ask, said in zip(sorted(asks), found(steps, asks), strict=True)}
    assert [answers[at(now), at(as_of)] for now, as_of in asked] == [
        (None, "not yet"),
        (2, "found"),
        (1, "found"),
        (1, "found"),
        (None, "too old"),
        (None, "absent"),
        (2, "found"),
        (None, "too old"),
    ]


def test_of_writes_of_one_time_the_last_is_the_value_of_that_time_and_none_is_one_before_it() -> (
    None
):
    steps = [Step("k", at(10), amount) for amount in (3, 1, 2)]
    asks = [Ask("k", at(15), at(9)), Ask("k", at(15), at(10)), Ask("k", at(15), at(11))]
    assert found(steps, asks) == [(None, "absent"), (3, "found"), (3, "found")]


@pytest.mark.parametrize("epoch_size", [1, 2, 10])
def test_history_expires_by_the_time_of_a_request_and_not_by_that_of_the_epoch(
    epoch_size: int,
) -> None:
    """In one epoch the watermark is far ahead when the requests are handled, or it is not."""
    steps = [Step("k", at(10), 1), Step("k", at(20), 2), Step("k", at(9000), 3)]
    asks = [Ask("k", at(21), at(11)), Ask("k", at(30), at(20)), Ask("k", at(9001), at(8999))]
    expected = [(1, "found"), (2, "found"), (2, "found")]
    assert found(steps, asks, epoch_size=epoch_size) == expected


@pytest.mark.parametrize("instant", [dt.datetime.max, dt.datetime(1, 1, 1, microsecond=1)])
def test_the_first_and_the_last_instants_are_times_of_requests(instant: dt.datetime) -> None:
    time = instant.replace(tzinfo=dt.UTC)
    assert found([], [Ask("k", time, time)]) == [(None, "absent")]


def test_late_operations_have_no_effect_and_are_a_stream() -> None:
    job = sk.Job("late")
    store = job.add(sk.KVStore("kv", key=str, value=int, event_time="at"))
    steps = job.source("steps", Step)
    put = store.put(steps, key="key", value="amount")
    found = store.multi_get(steps, keys=lambda step: ["a", step.key, "absent"])
    empty = store.multi_get(steps, keys=lambda step: [], name="empty")
    found.sink("found")
    for answers in (put, found, empty):
        store.late(answers).sink(f"late.{answers.name}")
        assert store.late(answers).name == store.late(answers).name
    given = [Step("a", at(5), 1), Step("b", at(2), 7), Step("b", at(3), 8), Step("b", at(6), 2)]
    done = job.run({"steps": given}, epoch_size=1)
    late = [Step("b", at(2), 7), Step("b", at(3), 8)]
    assert [(answer.record.at, answer.values) for answer in done.outputs["found"]] == [
        (at(5), [1, 1, None]),
        (at(6), [1, 2, None]),
    ]
    assert done.outputs["late.kv.multi_get.steps"] == late
    assert done.outputs["late.empty"] == late
    assert [tuple(request) for request in done.outputs["late.kv.put.steps"]] == [
        ("b", 7, at(2)),
        ("b", 8, at(3)),
    ]


def test_equal_requests_of_several_epochs_are_answered_together() -> None:
    job = sk.Job("equal")
    store = job.add(sk.KVStore("kv", key=str, value=int, event_time="at", lateness="5 seconds"))
    steps = job.source("steps", Step)
    store.put(steps, key="key", value="amount")
    store.multi_get(steps, keys=lambda step: ["a", "b"]).sink("found")
    one = Step("a", at(5), 1)
    done = job.run({"steps": [one, Step("b", at(4), 2), one, one]}, epoch_size=1, parallelism=3)
    assert [answer.values for answer in done.outputs["found"] if answer.at == at(5)] == [[1, 2]] * 3


@pytest.mark.parametrize("left", ["put", "get"])
def test_buffered_requests_of_a_removed_operation_are_dropped_only_if_that_is_allowed(
    left: str,
) -> None:
    run = StoreRun(["put", "get"], Shape(lateness=0))
    run.epoch({"put": [Op("a", at(2), 1)], "get": [Op("a", at(3))]})
    removed = {"put": "get", "get": "put"}[left]
    job = store_job((left,), Shape(lateness=0))
    with pytest.raises(sk.StateSchemaError, match=f"kv_{removed}_{removed}_requests, which it no"):
        LocalRunner(job.plan, run.repository, MemoryCopies(), RunOptions(parallelism=1))
    run.remove(removed)
    run.epoch({left: [Op("b", at(1))]})
    run.drain()


def test_buffered_requests_of_reordered_operations_are_in_a_savepoint() -> None:
    run = StoreRun(["put", "get"], Shape(lateness=0), parallelism=2)
    run.epoch({"put": [Op("a", at(2), 1)], "get": [Op("a", at(3))]})
    run.reorder(["get", "put"])
    run.epoch({"put": [Op("a", at(5), 2)], "get": [Op("a", at(4)), Op("a", at(5))]})
    write_savepoint(run.repository, "s")
    imported = Repository.in_memory()
    import_savepoint(Savepoint(run.repository, "savepoints/s"), imported, key_groups=8)
    run.repository = imported
    run.restart(3)
    run.drain()


def test_a_store_without_buffered_requests_may_take_other_ones() -> None:
    """Values of another type, by a hook; other operations; the order of arrival."""
    repository = Repository.in_memory()

    def as_text(value: int) -> str:
        return str(value)

    def runner(value: Any, kinds: Sequence[str], **options: Any) -> LocalRunner:
        job = sk.Job("store")
        store = job.add(sk.KVStore("kv", key=str, value=value, **options))
        steps = job.source("steps", Step)
        if "put" in kinds:
            store.put(steps, key="key", value=lambda step: value(step.amount)).sink("put")
        if "get" in kinds:
            store.get(steps, key="key").sink("get")
        return LocalRunner(job.plan, repository, MemoryCopies(), RunOptions(parallelism=1))

    runner(int, ["put"], event_time="at").epoch({"steps": [Step("a", at(1), 1)]})
    with pytest.raises(sk.StateSchemaError, match=r"record\.value was int and is str"):
        runner(str, ["put"], event_time="at", migrate={"value": as_text})
    runner(int, ["put"], event_time="at").epoch({"steps": [Step("a", at(9), 2)]})
    runner(int, ["put"], event_time="at").epoch({}, what="drain")
    runner(str, ["put"], event_time="at", migrate={"value": as_text})
    runner(int, ["get"], event_time="at")
    runner(int, ["get", "put"])


def test_the_time_of_a_removed_operation_is_none_of_one_without_records() -> None:
    run = StoreRun(["put"], Shape(lateness=LATENESS))
    run.epoch({"put": [Op("a", at(21))]})
    run.declare("get", 0)
    run.remove("put")
    run.epoch({})
    run.epoch({"get": [Op("a", at(1))]})
    run.drain()


@pytest.mark.parametrize("name", [None, "own"])
def test_a_buffered_request_is_never_taken_for_one_of_another_operation(name: str | None) -> None:
    """Even if both have the same fields, and the same name."""
    repository = Repository.in_memory()

    def runner(kind: str, **options: Any) -> LocalRunner:
        job = sk.Job("store")
        store = job.add(sk.KVStore("kv", key=str, value=int, event_time="at"))
        steps = job.source("steps", Step)
        getattr(store, kind)(steps, key="key", name=name).sink("answers")
        if options:
            store.put(steps, key="key", value="amount").sink("put")
        return LocalRunner(
            job.plan, repository, MemoryCopies(), RunOptions(parallelism=1, **options)
        )

    runner("get").epoch({"steps": [Step("a", at(1), 1), Step("a", at(2), 2)]})
    with pytest.raises(sk.StateSchemaError, match="which it no longer takes"):
        runner("remove")
    continued = runner("remove", allow_dropped_state=True)
    assert continued.epoch({}, what="drain") == {"answers": [], "put": []}


def added_history(
    before: dict[str, Any], history: str, asks: list[Ask], *more: Step
) -> dict[tuple[str, dt.datetime], tuple[Any, str]]:
    """Answers of a store whose history was added, or made longer, after 20 puts of `k`, and of
    one value of `kept` and of `gone`, which was removed.
    """
    repository = Repository.in_memory()
    steps = [Step("kept", at(0), 7), Step("gone", at(0), 8)]
    steps += [Step("k", at(second), second) for second in range(20)]
    removed = [Step("gone", at(1), 0)]

    def job(**options: Any) -> sk.Job:
        job = sk.Job("history")
        store = job.add(sk.KVStore("kv", key=str, value=int, event_time="at", **options))
        store.put(job.source("steps", Step), key="key", value="amount")
        store.remove(job.source("removed", Step, idle_after="1 second"), key="key")
        asked = job.source("asks", Ask)
        store.get(asked, key="key").sink("now")
        if "history" in options:
            store.get(asked, key="key", as_of="as_of", name="then").sink("found")
        return job

    started = [Ask("k", at(second), at(second)) for second in range(20)]
    given: dict[str, list[Any]] = {"steps": steps, "removed": removed, "asks": started}
    clock = iter(range(10**6, 10**12, 10**6))
    job(**before).run(
        given, checkpoint=repository, epoch_size=4, drain=False, clock=lambda: next(clock)
    )
    given = {"steps": [*steps, *more], "removed": removed, "asks": [*started, *asks]}
    done = job(history=history).run(given, checkpoint=repository, clock=lambda: next(clock))
    found: list[Any] = done["found"]
    return {(ask.key, ask.as_of): (ask.value, ask.status) for ask in found}


def test_a_value_that_was_never_replaced_is_known_since_history_was_added() -> None:
    asks = [
        Ask(key, at(60), at(second)) for key in ("kept", "gone", "new") for second in (9, 25, 60)
    ]
    found = added_history({}, "1 minute", asks)
    assert found["kept", at(25)] == found["kept", at(60)] == (7, "found")
    assert found["gone", at(25)] == found["new", at(25)] == (None, "absent")
    for key in ("kept", "gone", "new"):
        assert found[key, at(9)] == (None, "too old"), f"{key} was not kept then"


def test_a_value_of_before_the_history_is_known_until_it_is_replaced() -> None:
    asks = [Ask("kept", at(60), at(second)) for second in (9, 25, 39, 40, 60)]
    found = added_history({}, "1 minute", asks, Step("kept", at(40), 9))
    assert found["kept", at(9)] == (None, "too old")
    assert found["kept", at(25)] == found["kept", at(39)] == (7, "found")
    assert found["kept", at(40)] == found["kept", at(60)] == (9, "found")


def test_what_a_shorter_history_did_not_keep_is_too_old_and_not_absent() -> None:
    asks = [Ask(key, at(60), at(second)) for key in ("gone", "k") for second in (0, 10, 25)]
    found = added_history({"history": "3 seconds"}, "1 minute", asks)
    assert found["gone", at(0)] == (None, "too old"), "it was there then"
    assert found["gone", at(25)] == (None, "absent")
    assert found["k", at(10)] == (None, "too old")
    assert found["k", at(25)] == (19, "found")


def readded(history: str | None, name: str = "kv") -> sk.Job:
    job = sk.Job("history")
    options: Any = {"history": history} if history else {}
    store = job.add(sk.KVStore(name, key=str, value=int, event_time="at", **options))
    store.put(job.source("steps", Step), key="key", value="amount")
    asks = job.source("asks", Ask)
    store.get(asks, key="key", name="now")
    if history:
        store.get(asks, key="key", as_of="as_of", name="then").sink("found")
    return job


def test_a_history_that_was_removed_is_added_again_with_a_savepoint_or_another_name(
    tmp_path: Path,
) -> None:
    home, steps, asks = tmp_path / "c", list[Step](), list[Ask]()
    given: dict[str, list[Any]] = {"steps": steps, "asks": asks}
    for number, history in enumerate(["1 hour", None, None]):
        steps += [Step("k", at(10 * number + second), second) for second in range(5)]
        asks += [Ask("other", at(10 * number + 4), at(0))]
        readded(history).run(given, checkpoint=home, drain=False, allow_dropped_state=True)
    steps += [Step("k", at(40), 9)]
    asks += [Ask("k", at(60), at(second)) for second in (1, 11, 39, 40, 60)]
    with pytest.raises(sk.StateSchemaError) as caught:
        readded("1 hour").run(given, checkpoint=home, allow_dropped_state=True)
    assert "key-value store 'kv' is declared with history= again" in str(caught.value)
    assert "from_savepoint=" in str(caught.value)

    write_savepoint(Repository(home), "s")
    done = readded("1 hour").run(
        given, checkpoint=tmp_path / "new", from_savepoint=home / "savepoints" / "s"
    )
    found = {answer.as_of: (answer.value, answer.status) for answer in done.outputs["found"]}
    assert found[at(1)] == found[at(11)] == (None, "too old"), "not the history of before"
    assert found[at(39)] == (4, "found")
    assert found[at(40)] == found[at(60)] == (9, "found")

    other = readded("1 hour", name="other")
    done = other.run(given, checkpoint=home, allow_dropped_state=True)
    found = {answer.as_of: (answer.value, answer.status) for answer in done.outputs["found"]}
    assert found[at(11)][0] is None, "the store began without values"
    assert found[at(40)] == found[at(60)] == (9, "found")


@pytest.mark.parametrize("before", [{}, {"history": "2 seconds"}], ids=["none", "shorter"])
def test_a_time_that_an_earlier_version_did_not_keep_is_too_old(before: dict[str, Any]) -> None:
    repository = Repository.in_memory()
    steps = [Step("k", at(second), second) for second in range(20)]
    job = sk.Job("history")
    store = job.add(sk.KVStore("kv", key=str, value=int, event_time="at", **before))
    store.put(job.source("steps", Step), key="key", value="amount")
    job.run({"steps": steps}, checkpoint=repository, epoch_size=1, drain=False)
    asks = [Ask("k", at(30), at(second)) for second in (12, 25, 30)]
    given: dict[str, list[Any]] = {"steps": [*steps, Step("k", at(25), 25)], "asks": asks}
    done = history_job(history="20 seconds").run(given, checkpoint=repository)
    found = {answer.as_of: (answer.value, answer.status) for answer in done.outputs["found"]}
    assert found[at(12)] == (None, "too old"), "its value was replaced before it was kept"
    assert found[at(25)] == found[at(30)] == (25, "found")


def test_answers_wait_for_the_watermark_when_a_run_is_not_drained() -> None:
    job, repository = history_job(history="10 seconds"), Repository.in_memory()
    steps, asks = [Step("k", at(5), 1)], [Ask("k", at(5), at(5)), Ask("k", at(6), at(6))]
    inputs: dict[str, list[Any]] = {"steps": steps, "asks": asks}
    assert not job.run(inputs, checkpoint=repository, drain=False).outputs["found"]
    inputs = {"steps": [*steps, Step("k", at(7), 2)], "asks": [*asks, Ask("k", at(7), at(7))]}
    done = job.run(inputs, checkpoint=repository, drain=False)
    assert [answer.at for answer in done.outputs["found"]] == [at(5)]
    done = job.run(inputs, checkpoint=repository)
    assert [(answer.at, answer.value) for answer in done.outputs["found"]] == [
        (at(6), 1),
        (at(7), 2),
    ]


@pytest.mark.parametrize("epoch_size", [1, 3])
def test_a_value_with_a_ttl_expires_by_the_times_of_operations_however_epochs_are_cut(
    epoch_size: int,
) -> None:
    job = sk.Job("expiring")
    ttl = sk.TTL("10 seconds", clock="event")
    store = job.add(sk.KVStore("kv", key=str, value=int, event_time="at", ttl=ttl))
    steps = job.source("steps", Step)
    store.get(steps, key="key").sink("found")
    store.put(steps.filter(lambda step: step.amount > 0, name="puts"), key="key", value="amount")
    given = [(1, 1), (10, 0), (11, 0), (12, 2), (21, 3), (30, 0), (31, 0), (9000, 0)]
    records = [Step("k", at(seconds), amount) for seconds, amount in given]
    done = job.run({"steps": records}, epoch_size=epoch_size)
    assert [answer.value for answer in done.outputs["found"]] == [
        None,
        1,
        None,
        None,
        2,
        3,
        None,
        None,
    ]
