"""A job and its document are the same job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.demo.flights import build_job
from statekit.testing import JobHarness
from tests.bench.nexmark import joins, ranked, windowed
from tests.support.billing_job import billing_job
from tests.support.counting_job import tally_job
from tests.support.crash_job import crash_job
from tests.support.document_jobs import DocumentJob
from tests.support.random_joins import RandomJoin
from tests.support.served import sales_job

SEEDS = range(200)

JOBS = [
    build_job,
    billing_job,
    tally_job,
    crash_job,
    sales_job,
    *(
        getattr(module, name)
        for module in (joins, ranked, windowed)
        for name in sorted(vars(module))
        if name.startswith("query_")
    ),
]

SCHEMA = jsonschema.Draft202012Validator(sk.Job.json_schema())


def read_again(job: sk.Job) -> sk.Job:
    """The job of the document of a job, which has the same document."""
    text = job.to_json()
    again = sk.Job.from_json(text)
    assert json.loads(again.to_json()) == json.loads(text)
    assert str(again) == str(job)
    return again


def results(job: sk.Job, inputs: dict[str, list[Any]], checkpoint: Repository) -> Any:
    given = {name: inputs[name] for name in ("orders", "customers")}
    run = job.run(given, checkpoint=checkpoint, drain=False, epoch_size=17)
    return {name: list(map(repr, records)) for name, records in run.outputs.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_job_is_that_of_its_document(seed: int) -> None:
    job = DocumentJob(seed).job
    read_again(job)
    SCHEMA.validate(json.loads(job.to_json()))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_job_runs_as_that_of_its_document_and_continues_its_checkpoint(seed: int) -> None:
    made = DocumentJob(seed)
    again, inputs = read_again(made.job), made.inputs()
    first, second = Repository.in_memory(), Repository.in_memory()
    assert results(again, inputs, first) == results(made.job, inputs, second)
    more = {name: records * 2 for name, records in inputs.items()}
    assert results(again, more, second) == results(made.job, more, first)


@pytest.mark.parametrize("make", JOBS)
def test_a_job_of_the_tests_is_that_of_its_document(make: Any) -> None:
    job = make()
    read_again(job)
    SCHEMA.validate(json.loads(job.to_json()))


@pytest.mark.parametrize("seed", range(20))
def test_a_random_join_is_that_of_its_document(seed: int, tmp_path: Path) -> None:
    join = RandomJoin(seed)
    job = join.job()
    again = read_again(job)
    same = [JobHarness(each, 2) for each in (job, again)]
    for left, right in zip(join.left, join.right, strict=True):
        first, second = (harness.send(left=left, right=right) for harness in same)
        assert first == second
