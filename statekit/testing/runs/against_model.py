"""Comparison of a run over states with a run over plain Python, for the same history."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from statekit.errors import StatekitError, StateTypeError
from statekit.job.job import Job
from statekit.job.plan import Operator, Output
from statekit.shown import shown
from statekit.testing.drivers.driver import EpochContents
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.process_model import KeyModel, ProcessModel, WritingKey
from statekit.testing.runs.comparison import agree, have_the_same, is_same
from statekit.testing.runs.observed import Observed, Step
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject
from statekit.timestamp import MAX_MICROS, micros_to_datetime
from statekit.watermark import BEGINNING


class FunctionModels:
    """Models of the process functions of a job that have a key and no operator state.

    A model gets the records that its operator got in the run, and the watermark of the run. So each
    function is compared on its own.

    Parameters:
        job: the job.
        of_key: the class of the keys of a function.

    Attributes:
        of: the models, by operator.
    """

    def __init__(self, job: Job, of_key: type[KeyModel] = KeyModel) -> None:
        self._job = job
        self.of: dict[str, ProcessModel] = {}
        for operator in job.operators:
            traits = operator.declared.traits
            # Records of a processor by event time are late by the watermark of the epoch before.
            if traits.made_of is None and not traits.settles:
                with contextlib.suppress(StateTypeError):
                    self.of[operator.name] = ProcessModel(operator.declared, of_key)

    def begin(self, step: Step, harness: JobHarness) -> None:
        """Begin an epoch that the harness has not run yet."""

    def run(
        self, given: Mapping[str, Sequence[Any]], step: Step, harness: JobHarness
    ) -> dict[str, list[Any]]:
        """Run the epoch that the harness has run, and return the records of each stream of a
        function, late ones too.

        Parameters:
            given: the records of each stream of the job.
        """
        last, found = harness.coordinator.last, dict[str, list[Any]]()
        assert last is not None
        for operator in self._modelled():
            records = [(r, n) for n, stream in enumerate(operator.inputs) for r in given[stream]]
            reached = last.operators[operator.name].watermark_us
            at = None
            if reached is not None and reached != BEGINNING:
                at = micros_to_datetime(min(reached, MAX_MICROS))
            emitted = self.of[operator.name].run(records, at, step.at)
            found[operator.name] = emitted["outputs"]
            if "late" in emitted:
                found[operator.late] = emitted["late"]
        return found

    def differs(self, contents: EpochContents) -> str | None:
        """Return the first state, or timers, that differ from those of a model; None if there are
        none.
        """
        for operator in self._modelled():
            model = self.of[operator.name]
            if what := _in_states(operator, model, contents):
                return what
            if what := _in_timers(operator, model, contents):
                return what
        return None

    def _modelled(self) -> Iterator[Operator]:
        return (operator for operator in self._job.operators if operator.name in self.of)


def is_modelled(job: Job) -> bool:
    """Return whether a function of a job has a model."""
    return bool(FunctionModels(job).of)


def differs_from_model(
    subject: Subject, history: History, models: type[FunctionModels] = FunctionModels
) -> tuple[str, Observed, Observed] | None:
    """Return the difference between a run and the models, and the results of both; None if they
    are the same, or if the run fails.

    If functions have timers, the end of event time is left out: it fires everything, whatever was
    kept before.
    """
    job = _with_all_streams(subject.job)
    model = models(job)
    for ours, emitted, (theirs,) in _epochs(subject, history, job, [model]):
        what = _in_records(job, ours, emitted, theirs)
        what = what or model.differs(ours.contents[-1])
        if what is not None:
            what = f"{what} in epoch {len(ours.epochs) - 1}"
            return what, *_shown(subject.job, ours, theirs)
    return None


def forgets_changes(subject: Subject, history: History) -> tuple[str, Observed, Observed] | None:
    """Return the records that differ if changes of read values are written although the function
    does not write them, and the results of both runs; None if the records are the same.
    """
    job = _with_all_streams(subject.job)
    models = FunctionModels(job), FunctionModels(job, WritingKey)
    try:
        for run, _, (ours, theirs) in _epochs(subject, history, job, models):
            for stream, records in ours.epochs[-1].items():
                if not have_the_same(records, theirs.epochs[-1][stream]):
                    number = len(run.epochs) - 1
                    return f"the records of {stream!r} in epoch {number}", ours, theirs
    except StatekitError as error:
        subject.failed.append(error)
    return None


def _epochs(
    subject: Subject, history: History, job: Job, models: Sequence[FunctionModels]
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
        emitted = _received(job, run.epochs[-1])
        for model, found in zip(models, of_models, strict=True):
            found.epochs.append(model.run(copy.deepcopy(emitted), step, harness))
        yield run, emitted, of_models


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


def _in_records(
    job: Job, ours: Observed, emitted: Mapping[str, list[Any]], theirs: Observed
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
