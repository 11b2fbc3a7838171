"""`statekit check` and `job.check`: all findings at once, and nothing is changed."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checking.checkpoint_fit import checkpoint_findings
from statekit.job.findings import JobFinding
from statekit.job.job import Job
from tests.support import checked_jobs as jobs
from tests.support.invoked import invoked
from tests.support.sinks import ORDERS, Order, spending, spending_job

MODULE = "tests.support.checked_jobs"


def checked(job: str, *words: object) -> tuple[int, list[JobFinding]]:
    """Run `statekit check JOB WORDS…`, and return its exit code and the findings."""
    done = invoked("check", f"{MODULE}:{job}", "--json", *words)
    return done.exit_code, [JobFinding(**each) for each in json.loads(done.stdout)]


def wrong(findings: list[JobFinding]) -> list[tuple[str, str]]:
    return [each[:2] for each in findings if each.severity != "ok"]


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_job_without_faults_has_exit_code_0_and_a_line_per_finding(root: Path) -> None:
    done = invoked("check", f"{MODULE}:reached", "--spark", "--checkpoint", root)
    assert done.exit_code == 0, done.output
    *lines, last = done.stdout.splitlines()
    assert last == "0 errors, 0 warnings"
    assert all(line.startswith("ok      ") for line in lines)
    text = "\n".join(lines)
    for part in (
        "source orders: records of Order",
        "operator spending: orders → Spent; by customer; state total: value[int]",
        "operator spending: a Spark worker can unpickle it",
        "sink spent: outputs of spending with customer: string, cents: int64",
        "the first run begins without state",
        "sink spent: it prints to the terminal",
    ):
        assert part in text
    assert not root.exists()


@pytest.mark.parametrize(
    ("job", "name", "message"),
    [
        ("not_pickled", "filter is_large", "the variable 'lock' of is_large is a lock"),
        ("not_unpickled", "filter by_five", "No module named 'only_here'"),
    ],
)
def test_a_function_that_workers_do_not_get_is_an_error_on_spark_and_else_a_warning(
    job: str, name: str, message: str
) -> None:
    code, findings = checked(job, "--spark")
    assert (code, wrong(findings)) == (1, [("error", name)])
    assert message in next(each.what for each in findings if each.severity == "error")
    code, findings = checked(job)
    assert (code, wrong(findings)) == (0, [("warning", name)])


def test_all_faults_are_found_in_one_check(root: Path) -> None:
    spending_job().run({"orders": ORDERS}, checkpoint=root)
    before = files_below(root)
    code, findings = checked("with_text", *("--checkpoint", root))
    assert code == 1
    assert wrong(findings) == [("error", "state spending.total")]
    assert files_below(root) == before
    broken = sk.Job("shop")
    source = sk.sources.json_lines("/no/such/folder")
    broken.source("orders", Order, source).process(
        jobs.with_text().plan.operators[0].declared
    ).sink("spent", sk.sinks.parquet("/proc/spent"))
    found = wrong(broken.check(checkpoint=root))
    assert found == [
        ("error", "state spending.total"),
        ("error", "source orders"),
        ("error", "sink spent"),
    ]
    assert files_below(root) == before


# -------------------------------------------------------------------------------- checkpoints


def fit(job: Job, root: Path, **options: Any) -> list[JobFinding]:
    given: dict[str, Any] = {"allow_dropped_state": False, "limit_s": 5.0, **options}
    return list(checkpoint_findings(job.plan, str(root), **given))


@pytest.fixture
def written(root: Path) -> Path:
    spending_job().run({"orders": ORDERS}, checkpoint=root)
    return root


def test_each_state_has_its_verdict(written: Path) -> None:
    same = fit(jobs.reached, written)
    assert same[-1] == ("ok", "state spending.total", "has the stored type")
    changed = {each.where: each for each in fit(jobs.with_text(), written)}
    assert changed["state spending.total"].severity == "error"
    assert (
        "changed its type, and stored rows would be misread" in changed["state spending.total"].what
    )
    assert changed["state spending.seen"].what == "is new, and begins empty"
    assert "with a hook" in fit(jobs.migrated(), written)[-1].what


def test_a_state_that_is_no_longer_declared_is_an_error_unless_it_is_given_up(
    written: Path,
) -> None:
    assert wrong(fit(jobs.without_state(), written)) == [("error", "operator spending")]
    given_up = fit(jobs.without_state(), written, allow_dropped_state=True)
    assert wrong(given_up) == [("warning", "state spending.total")]


def test_what_a_check_refuses_a_run_refuses_with_the_same_words(written: Path) -> None:
    for made in (jobs.with_text(), jobs.without_state(), sk.Job("other", key_groups=7)):
        if not made.plan.operators:
            made.source("orders", Order).process(spending)
        (error,) = (each for each in fit(made, written) if each.severity == "error")
        with pytest.raises(sk.StatekitError) as refused:
            made.run({"orders": []}, checkpoint=written)
        assert str(refused.value) == error.what


class Seen(NamedTuple):
    customer: str
    at: dt.datetime


@sk.process(key="customer", event_time="at")
def gone(seen: Seen, ctx: sk.Context, last: sk.ValueState[int]) -> Iterator[str]:
    ctx.timers.set(seen.at + dt.timedelta(hours=1), "leaves")
    yield seen.customer


@gone.on_timer("leaves")
def leaves(timer: sk.Timer, ctx: sk.Context, last: sk.ValueState[int]) -> Iterator[str]:
    yield "gone"


def test_timers_are_named_and_the_end_of_event_time_is_a_warning(root: Path) -> None:
    job = sk.Job("shop")
    job.source("seen", Seen).process(gone).sink("out")
    records = [Seen("ada", dt.datetime(2026, 1, 31, tzinfo=dt.UTC))]
    job.run({"seen": records}, checkpoint=root)
    findings = job.check({"seen": records}, checkpoint=root, connections=False)
    assert wrong(findings) == [("warning", "checkpoint")]
    assert any("timers leaves" in each.what for each in findings)
    assert any("event time has ended" in each.what for each in findings)


@pytest.mark.parametrize("content", ["a file", None])
def test_a_checkpoint_that_cannot_be_read_or_written_is_an_error(
    root: Path, written: Path, content: str | None
) -> None:
    if content is None:
        for path in (root / "epochs").glob("*.json"):
            path.write_bytes(b"{}")
    else:
        root = root / "file"
        root.write_text(content)
    assert wrong(fit(jobs.reached, root)) == [("error", "checkpoint")]


# -------------------------------------------------------------------------- what is missing


def test_a_job_that_cannot_be_loaded_is_one_error() -> None:
    done = invoked("check", "no_such_module:job", "--json")
    assert done.exit_code == 1
    (finding,) = json.loads(done.stdout)
    assert finding["where"] == "job no_such_module:job"
    assert "cannot be imported" in finding["what"]


def test_a_source_and_a_sink_without_a_place_are_errors_for_a_command() -> None:
    job = "tests.support.sinks:spending_job"
    done = invoked("check", job, "--json", "--offline")
    found = [JobFinding(**each) for each in json.loads(done.stdout)]
    assert wrong(found) == [("error", "source orders"), ("error", "sink spent")]
    assert wrong(spending_job().check({"orders": ORDERS}, connections=False)) == []


def test_what_runs_on_spark_only_is_an_error_elsewhere() -> None:
    job = sk.Job("shop")
    job.source("orders", Order, sk.sources.spark("json")).process(spending).sink(
        "spent", sk.sinks.writer("noop")
    )
    assert wrong(job.check(connections=False)) == [
        ("error", "source orders"),
        ("error", "sink spent"),
    ]
    assert wrong(job.check(spark=True, connections=False)) == []


def test_wrong_usage_has_exit_code_2() -> None:
    assert invoked("check").exit_code == 2
    assert invoked("check", f"{MODULE}:reached", "--limit", "0").exit_code == 2
    with pytest.raises(sk.StateTypeError, match="limit_s=-1"):
        jobs.reached.check(limit_s=-1)
