"""State machines as finders of faults: those of the kit, of a job and of a state of each kind, and
then those of bases and of the protocol.
"""

from __future__ import annotations

import sys
from typing import Annotated

from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import statekit as sk
from statekit.testing.machines import JobMachine
from statekit.testing.process_model import ProcessModel
from tests.model.test_bases import Bases
from tests.model.test_protocol_fuzz import HISTORIES, Protocol
from tests.mutation.subjects import Mean, alarmed
from tests.support.state_machines import (
    AggregatingStateMachine,
    ListStateMachine,
    MapStateMachine,
    ReducingStateMachine,
    ValueStateMachine,
)

HISTORIES_OF_BASES, HISTORIES_OF_PROTOCOL = 60, 60


class Alarms(JobMachine):
    """Also advances the watermark between records."""

    job = alarmed

    def make_model(self) -> ProcessModel:
        return ProcessModel(alarmed)


class Values(ValueStateMachine):
    state = Annotated[sk.ValueState[int], sk.Default(7), sk.TTL("8 hours", refresh="read")]


class Lists(ListStateMachine):
    state = sk.ListState[int]


class Maps(MapStateMachine):
    state = Annotated[sk.MapState[str, int], sk.TTL("8 hours", clock="event")]


class Reduced(ReducingStateMachine):
    state = Annotated[sk.ReducingState[int], sk.Reduce(lambda a, b: (3 * a + b) % 1000)]


class Means(AggregatingStateMachine):
    state = Annotated[sk.AggregatingState[int, tuple[int, int], float], Mean]


def main() -> None:
    """Run machines until one fails, and say which and how."""
    for machine in (Alarms, Values, Lists, Maps, Reduced, Means):
        _run(machine, machine.TestCase.settings)
    _run(Bases, settings(Bases.TestCase.settings, max_examples=HISTORIES_OF_BASES))
    _run(Protocol, settings(HISTORIES, max_examples=HISTORIES_OF_PROTOCOL))


def _run(machine: type[RuleBasedStateMachine], given: settings) -> None:
    unshrunk = settings(given, database=None, derandomize=True, phases=[Phase.generate])
    try:
        run_state_machine_as_test(machine, settings=unshrunk)
    except Exception as error:  # noqa: BLE001 - whatever it is, it was found
        kind = type(error).__name__
        print(f"state machine {machine.__name__}: {kind}")
        sys.exit(1)


if __name__ == "__main__":
    main()
