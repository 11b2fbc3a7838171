"""A history of a process function over plain Python, compared with a run over states."""

from __future__ import annotations

from collections import Counter

from statekit.errors import StateTypeError
from statekit.testing.job_harness import JobHarness
from statekit.testing.process_model import ProcessModel
from statekit.testing.subject import History, Observed, Step, Subject


def modelled(subject: Subject) -> ProcessModel | None:
    """Return a model of the function that is checked; None if it is a job that has none."""
    if len(subject.functions) != 1 or len(subject.job.sources) != 1:
        return None
    try:
        return ProcessModel(subject.functions[0])
    except StateTypeError:
        return None


def differs_from_model(
    subject: Subject, model: ProcessModel, history: History
) -> tuple[str, Observed, Observed] | None:
    """Return what differs, and what both come to; None if nothing does.

    The end of event time is left out: it fires everything, whatever was kept before.
    """
    harness, ours, theirs = JobHarness(subject.job, 1), Observed(), Observed()
    for number, step in enumerate(subject.steps(history, ours)):
        if step.what in ("end", "after"):
            break
        ours.add(step.run(harness), harness)
        theirs.epochs.append(_emitted(model, step))
        for sink, records in ours.epochs[-1].items():
            if Counter(map(repr, records)) != Counter(map(repr, theirs.epochs[-1].get(sink, []))):
                return f"the records of sink {sink!r} in epoch {number}", ours, theirs
        for (operator, name), values in ours.contents[-1].states.items():
            for key, value in values.items():
                if repr(model.state(name, key)) != repr(value):
                    what = f"state {name!r} of {operator} at the key {key!r} after epoch {number}"
                    return what, ours, theirs
    return None


def _emitted(model: ProcessModel, step: Step) -> dict[str, list[object]]:
    """Run an epoch of the model."""
    model.processing_time = step.at
    if step.what == "watermark":
        return model.advance_watermark(step.watermark)
    return model.send(**step.records)
