"""Comparison of a run over states with a run over plain Python, for the same history."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from statekit.errors import StatekitError
from statekit.job.job import Job
from statekit.job.plan import Operator, Output, Transform
from statekit.shown import shown
from statekit.testing.comparison import agree, have_the_same, is_same
from statekit.testing.driver import EpochContents
from statekit.testing.job_harness import JobHarness, timed_readers
from statekit.testing.job_model import OperatorModels
from statekit.testing.process_model import ProcessModel, WritingKey
from statekit.testing.subject import History, Observed, Step, Subject
from statekit.timestamp import datetime_to_micros


def is_modelled(job: Job) -> bool:
    """Return whether an operator of a job has a model."""
    return bool(OperatorModels(job).of)


def differs_from_model(subject: Subject, history: History) -> tuple[str, Observed, Observed] | None:
    """Return the difference between a run and the model, and the results of both; None if they are
    the same, or if the run fails.

    If functions have timers, the end of event time is left out: it fires everything, whatever was
    kept before.
    """
    job = _with_all_streams(subject.job)
    subject.memory.restore()
    model, harness = OperatorModels(job), JobHarness(job, 1, memory=subject.memory)
    ours, theirs = Observed(), Observed()
    subject.count_run(history)
    for step in subject.steps(history, ours):
        if step.what in ("end", "after") and subject.has_timers:
            break
        if step.has_nothing_to_do(harness):
            continue
        to = _watermarks(job, step, harness)
        try:
            ours.add(step.run(harness), harness)
        except StatekitError as error:
            subject.failed.append(error)
            return None
        emitted = _received(job, ours.epochs[-1])
        drains = step.what in ("end", "after")
        theirs.epochs.append(model.run(copy.deepcopy(emitted), step.at, drains=drains, to=to))
        what = _in_epoch(job, model, ours, emitted, theirs.epochs[-1])
        if what is not None:
            return what, *_shown(subject.job, ours, theirs)
    return None


def forgets_changes(subject: Subject, history: History) -> tuple[str, Observed, Observed] | None:
    """Return the records that differ if changes of read values are written although the function
    does not write them, and the results of both runs; None if the records are the same.
    """
    job = _with_all_streams(subject.job)
    subject.memory.restore()
    harness, run = JobHarness(job, 1, memory=subject.memory), Observed()
    model, writing = OperatorModels(job), OperatorModels(job, WritingKey)
    ours, theirs = Observed(), Observed()
    subject.count_run(history)
    for step in subject.steps(history, run):
        if step.what in ("end", "after") and subject.has_timers:
            break
        if step.has_nothing_to_do(harness):
            continue
        to, drains = _watermarks(job, step, harness), step.what in ("end", "after")
        try:
            run.add(step.run(harness), harness)
            emitted = _received(job, run.epochs[-1])
            for of, found in ((model, ours), (writing, theirs)):
                given = copy.deepcopy(emitted)
                found.epochs.append(of.run(given, step.at, drains=drains, to=to))
        except StatekitError as error:
            subject.failed.append(error)
            return None
        for stream, records in ours.epochs[-1].items():
            if not have_the_same(records, theirs.epochs[-1][stream]):
                number = len(run.epochs) - 1
                return f"the records of {stream!r} in epoch {number}", ours, theirs
    return None


def _with_all_streams(job: Job) -> Job:
    """Return a job with a sink for each stream, by the name of the stream."""
    every = copy.copy(job)
    streams = [source.name for source in job.sources]
    streams += [each.name for each in job.transforms]
    for operator in job.operators:
        streams += [operator.name] if operator.declared.output_type is not None else []
        streams += [operator.late] if operator.declared.event_time is not None else []
    every.sinks = [Output(name, name) for name in streams]
    return every


def _watermarks(job: Job, step: Step, harness: JobHarness) -> Mapping[str, int]:
    """Return the least watermarks of operators in an epoch, in microseconds."""
    if step.what != "watermark":
        return {}
    return dict.fromkeys(timed_readers(job), datetime_to_micros(step.reached(harness)))


def _received(job: Job, emitted: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the records of each stream as its readers receive them."""
    of_sources = {source.name for source in job.sources}
    late = {operator.late: operator for operator in job.operators}
    found = {}
    for stream, records in emitted.items():
        has_form = stream not in of_sources and stream not in late
        form = job.output_of(stream) if has_form else None
        found[stream] = records if form is None else form.copies(records)
    return found


def _in_epoch(
    job: Job,
    model: OperatorModels,
    ours: Observed,
    emitted: Mapping[str, list[Any]],
    theirs: dict[str, list[Any]],
) -> str | None:
    """Return the first difference in the last epoch; None if there is none.

    Parameters:
        emitted: the records of each stream, as readers receive them.
        theirs: the records of the model, to which those of the transforms are added.
    """
    number, contents = len(ours.epochs) - 1, ours.contents[-1]
    for transform in job.transforms:
        theirs |= _transformed(transform, emitted)
    for operator in job.operators:
        form = operator.declared.output_type
        if form is not None and operator.name in theirs:
            with contextlib.suppress(StatekitError):  # then they differ
                theirs[operator.name] = form.stored(theirs[operator.name])
    for stream, again in theirs.items():
        if stream in emitted and not agree(ours.epochs[-1][stream], again):
            return f"the records of {stream!r} in epoch {number}"
    if contents.late != model.late:
        return f"late records up to epoch {number}: {contents.late}, and {model.late} in the model"
    for operator in job.operators:
        of = model.of.get(operator.name)
        if isinstance(of, ProcessModel):
            what = _in_states(operator, of, contents) or _in_timers(operator, of, contents)
            if what is not None:
                return f"{what} after epoch {number}"
    return None


def _transformed(transform: Transform, emitted: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the records that a transform emits, by the name of its stream."""
    fn, given = transform.function.fn, copy.deepcopy(emitted[transform.input])
    match transform.function.kind:
        case "of":
            made = [record for record in given if type(record) is fn]
        case "filter":
            kept = copy.deepcopy(given)  # what the filter does to its record is seen nowhere
            made = [record for record, own in zip(kept, given, strict=True) if fn(own)]
        case "flat_map":
            made = [copy.deepcopy(each) for record in given for each in fn(record)]
        case _:
            made = [copy.deepcopy(fn(record)) for record in given]
    with contextlib.suppress(StatekitError):  # then they differ
        made = transform.function.output_type.stored(made)
    return {transform.name: made}


def _in_states(operator: Operator, model: ProcessModel, contents: EpochContents) -> str | None:
    """Return the first state of a key that differs; None if all are the same."""
    for spec in operator.declared.states:
        values = contents.states.get((operator.name, spec.name))
        if values is None or not model.has_state(spec.name):
            continue
        for key in dict.fromkeys([*values, *model.keys]):
            again = model.state(spec.name, key)
            if not (is_same(values.get(key), again) or (key not in values and not again)):
                if key not in values and is_same(again, spec.default):
                    continue
                held = values.get(key)
                where = f"state {spec.name!r} of {operator.name} at the key {shown(key)}"
                return f"{where}, {shown(held)} and {shown(again)} in the model,"
    return None


def _in_timers(operator: Operator, model: ProcessModel, contents: EpochContents) -> str | None:
    """Return the first key whose timers differ; None if all are the same."""
    if not operator.declared.handles_timers:
        return None
    for key in dict.fromkeys([*contents.timers[operator.name], *model.keys]):
        if set(contents.timers[operator.name].get(key, ())) != set(model.timers(key)):
            return f"the timers of {operator.name} at the key {shown(key)}"
    return None


def _shown(job: Job, ours: Observed, theirs: Observed) -> tuple[Observed, Observed]:
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
