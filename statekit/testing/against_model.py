"""A history of a process function over plain Python, compared with a run over states."""

from __future__ import annotations

import datetime as dt

from statekit.errors import StatekitError, StateTypeError
from statekit.runtime.local import SourceForm
from statekit.testing.comparison import have_the_same, is_same
from statekit.testing.process_model import ProcessModel
from statekit.testing.subject import History, Observed, Step, Subject


def modelled(subject: Subject) -> ProcessModel | None:
    """Return a model of the function that is checked; None if it has none: a job of several
    operators, with transforms before the function, or a window.
    """
    job = subject.job
    if len(job.operators) != 1 or len(job.sources) != 1:
        return None
    (operator,), (source,) = job.operators, job.sources
    if operator.streams != (source.name,) or operator.declared.traits.definition is not None:
        return None
    try:
        return ProcessModel(operator.declared)
    except StateTypeError:
        return None


def differs_from_model(
    subject: Subject, model: ProcessModel, history: History
) -> tuple[str, Observed, Observed] | None:
    """Return what differs, and what both come to; None if nothing does, or if the run fails.

    The end of event time is left out: it fires everything, whatever was kept before.
    """
    (operator,) = subject.job.operators
    emits = {operator.name: "outputs", operator.late: "late"}
    sinks = {each.name: emits[each.stream] for each in subject.job.sinks if each.stream in emits}
    subject.count_run(history)
    harness, ours, theirs = subject.harness(), Observed(), Observed()
    form = SourceForm(subject.job.sources[0].record_type)
    for number, step in enumerate(subject.steps(history, ours)):
        if step.what in ("end", "after"):
            break
        watermark = step.reached(harness) if step.what == "watermark" else None
        try:
            ours.add(step.run(harness), harness)
        except StatekitError as error:
            subject.failed.append(error)
            return None
        emitted = _emitted(model, step, watermark, form)
        theirs.epochs.append({sink: emitted[of] for sink, of in sinks.items()})
        for sink, again in theirs.epochs[-1].items():
            if not have_the_same(ours.epochs[-1][sink], again):
                return f"the records of sink {sink!r} in epoch {number}", ours, theirs
        for (_, name), values in ours.contents[-1].states.items():
            for key, value in values.items():
                if not is_same(model.state(name, key), value):
                    what = (
                        f"state {name!r} of {operator.name} at the key {key!r} after epoch {number}"
                    )
                    return what, ours, theirs
    return None


def _emitted(
    model: ProcessModel, step: Step, watermark: dt.datetime | None, form: SourceForm
) -> dict[str, list[object]]:
    """Run an epoch of the model, over the records that the function of a job gets.

    Parameters:
        watermark: to which event time is advanced; None if the epoch has records.
    """
    model.processing_time = step.at
    if watermark is not None:
        return model.advance_watermark(watermark)
    received = {name: form.received(form.taken(some)) for name, some in step.records.items()}
    return model.send(**received)
