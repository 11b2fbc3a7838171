"""Comparison of a run over states with a run over plain Python, for the same history."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from statekit.errors import StatekitError
from statekit.job.job import Job
from statekit.job.plan import Output, Plan
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.oracles.operator_models import OperatorModels
from statekit.testing.process_model import KeyModel, WritingKey
from statekit.testing.runs.comparison import agree, have_the_same
from statekit.testing.runs.observed import Observed
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject


def is_modelled(job: Plan) -> bool:
    """Return whether an operator of a job has a model."""
    models = OperatorModels(job)
    return bool(models.functions or models.others)


def differs_from_model(subject: Subject, history: History) -> tuple[str, Observed, Observed] | None:
    """Return the difference between a run and the models of all operators, and the results of
    both; None if they are the same, or if the run fails.

    If functions have timers, the end of event time is left out: it fires everything, whatever was
    kept before.
    """
    job = _with_all_streams(subject.job)
    model = OperatorModels(job.plan)
    for ours, emitted, (theirs,) in _epochs(subject, history, job, [model]):
        what = _in_records(job.plan, ours, emitted, theirs)
        what = what or model.differs(ours.contents[-1])
        if what is not None:
            what = f"{what} in epoch {len(ours.epochs) - 1}"
            return what, *_shown(subject.job.plan, ours, theirs)
    return None


def forgets_changes(subject: Subject, history: History) -> tuple[str, Observed, Observed] | None:
    """Return the records that differ if changes of read values are written although the function
    does not write them, and the results of both runs; None if the records are the same.
    """
    job = _with_all_streams(subject.job)
    models = [OperatorModels(job.plan, each, built_in=False) for each in (KeyModel, WritingKey)]
    if not models[0].functions:
        return None
    try:
        for run, _, (ours, theirs) in _epochs(subject, history, job, models):
            for name in models[0].functions:
                if not have_the_same(ours.epochs[-1][name], theirs.epochs[-1][name]):
                    number = len(run.epochs) - 1
                    return f"the records of {name!r} in epoch {number}", ours, theirs
    except StatekitError as error:
        subject.failed.append(error)
    return None


def _epochs(
    subject: Subject, history: History, job: Job, models: Sequence[OperatorModels]
) -> Iterator[tuple[Observed, dict[str, list[Any]], list[Observed]]]:
    """Run a history until an epoch fails. After each epoch, yield the run, the records of each
    stream as readers receive them, and the runs of the models.
    """
    subject.memory.restore()
    harness, run = JobHarness(job, 1, memory=subject.memory), Observed()
    of_models = [Observed() for _ in models]
    subject.count_run(history)
    for step in subject.steps(history, run):
        if step.what in ("end", "after") and subject.has_timers:
            return
        if step.has_nothing_to_do(harness):
            continue
        for model in models:
            model.begin(step, harness)
        try:
            run.add(step.run(harness), harness)
        except StatekitError as error:
            subject.failed.append(error)
            return
        emitted = _received(job.plan, run.epochs[-1])
        for model, found in zip(models, of_models, strict=True):
            found.epochs.append(model.run(copy.deepcopy(emitted), step))
        yield run, emitted, of_models


def _with_all_streams(job: Job) -> Job:
    """Return a job with a sink for each stream, by the name of the stream."""
    every, plan = copy.copy(job), job.plan
    streams = [source.name for source in plan.sources]
    streams += [each.name for each in plan.transforms]
    for operator in plan.operators:
        streams += [operator.name] if operator.declared.output_type is not None else []
        streams += [operator.late] if operator.declared.event_time is not None else []
        streams += [operator.errors] if operator.declared.errors.on_error == "collect" else []
    every.plan.sinks = [Output(name, name) for name in streams]
    return every


def _received(job: Plan, emitted: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the records of each stream as its readers receive them."""
    of_sources = {source.name for source in job.sources}
    late = {operator.late: operator for operator in job.operators}
    found = {}
    for stream, records in emitted.items():
        has_form = stream not in of_sources and stream not in late
        form = job.output_of(stream) if has_form else None
        found[stream] = records if form is None else form.copies(records)
    return found


def _in_records(
    job: Plan, ours: Observed, emitted: Mapping[str, list[Any]], theirs: Observed
) -> str | None:
    """Return the first stream whose records of the last epoch differ; None if there is none.

    Parameters:
        emitted: the records of each stream, as readers receive them.
    """
    again = theirs.epochs[-1]
    for operator in job.operators:
        form = operator.declared.output_type
        if form is not None and operator.name in again:
            with contextlib.suppress(StatekitError):  # then they differ
                again[operator.name] = form.stored(again[operator.name])
    for stream, records in again.items():
        if stream in emitted and not agree(ours.epochs[-1][stream], records):
            return f"the records of {stream!r}"
    return None


def _shown(job: Plan, ours: Observed, theirs: Observed) -> tuple[Observed, Observed]:
    """Return two runs with the records of sinks, and of streams that differ in the last epoch."""
    names = {sink.stream: sink.name for sink in job.sinks}
    last, again = ours.epochs[-1], theirs.epochs[-1]
    for stream, records in again.items():
        if stream in last and not agree(last[stream], records):
            names.setdefault(stream, stream)

    def named(observed: Observed) -> Observed:
        epochs = [
            {name: epoch[stream] for stream, name in names.items() if stream in epoch}
            for epoch in observed.epochs
        ]
        return replace(observed, epochs=epochs)

    return named(ours), named(theirs)
