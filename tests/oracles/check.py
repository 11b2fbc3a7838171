"""`check` with the properties that find faults of statekit itself."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any
from unittest import mock

from statekit.checkpoint.repository import Repository
from statekit.testing import check as check_of_users
from statekit.testing.check_report import Report
from statekit.testing.checks.properties import PROPERTIES, always, nothing
from statekit.testing.checks.property import Property, RunDifference, alone, compared
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.runs.against_model import differs_from_model
from statekit.testing.runs.comparison import in_any_order
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject
from tests.oracles.operator_models import OperatorModels
from tests.oracles.read_back import FollowedReplica, misread
from tests.oracles.several_hosts import (
    Moves,
    Together,
    hosts,
    on_several_hosts,
    together,
    with_all_together,
)


def _plain(subject: Subject, history: History, _: None) -> RunDifference | None:
    found = differs_from_model(subject, history, OperatorModels)
    if found is None:
        return None
    what, ours, theirs = found
    return RunDifference(what, ("one shard in memory", "plain Python"), (ours, theirs))


def _queries(subject: Subject, history: History, _: None) -> RunDifference | None:
    repository = Repository.in_memory()
    harness = subject.harness(1, "memory", repository)
    replica = FollowedReplica(subject.job, repository)

    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if 0 < number <= len(history):
            replica.follow(harness.contents())
        return harness

    try:
        observed = subject.plain_run(history, disturb, harness=harness)
    finally:
        replica.close()
    if observed is None:
        return None
    return alone(replica.misread or misread(subject.job, repository, observed.contents), observed)


OWN = (
    Property(
        "hosts",
        "Results depend on which host runs a shard: a local copy is stale",
        always,
        hosts,
        compared(on_several_hosts, lambda moves: f"two hosts: {moves}"),
        takes=Moves,
        share=0.1,
    ),
    Property(
        "together",
        "Results are other ones after errors of a store or a disk, with other shards and hosts",
        always,
        together,
        compared(with_all_together, lambda drawn: f"all together: {drawn}", in_any_order),
        takes=Together,
        share=0.1,
    ),
    Property(
        "queries",
        "What queries and SQL read of a checkpoint is not what the function has",
        always,
        nothing,
        _queries,
        share=0.1,
    ),
)
"""The properties that users do not have."""


def _has_model(subject: Subject) -> str | None:
    models = OperatorModels(subject.job)
    return None if models.of or models.others else "has no operator with a model"


_ALL = (
    *(
        replace(each, applies=_has_model, find=_plain) if each.name == "plain Python" else each
        for each in PROPERTIES
    ),
    *OWN,
)


def check(*arguments: Any, **options: Any) -> Report:
    """Check a function or a job as users do, and what only we want to know: whether all operators
    do what plain Python does, and what other readers and other hosts see.
    """
    __tracebackhide__ = True
    with mock.patch.object(sys.modules["statekit.testing.checks.check"], "PROPERTIES", _ALL):
        return check_of_users(*arguments, **options)
