"""`FunctionModels`: the process functions of a job over plain Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from statekit.errors import StateTypeError
from statekit.job.job import Job
from statekit.job.plan import Operator
from statekit.shown import shown
from statekit.testing.drivers.driver import EpochContents
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.process_model import KeyModel, ProcessModel
from statekit.testing.runs.comparison import is_same
from statekit.testing.runs.observed import Step
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
