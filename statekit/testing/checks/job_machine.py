"""`JobMachine`: a Hypothesis state machine that compares a job with a model of it."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from statekit.errors import StateTypeError
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.stream import Stream
from statekit.shown import shown
from statekit.testing.drivers.driver import Backend
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.effort import Effort
from statekit.testing.histories import Epochs, Reached, Scene
from statekit.testing.runs.comparison import is_same, missing
from statekit.testing.runs.subject import Subject

__all__ = ["JobMachine", "JobModel"]

Epoch = tuple[Reached, dict[str, list[Any]]]
"""Event time after an epoch, and the records of each source."""


_SHARDS = st.integers(1, 5)
_STEPS = st.integers(1, 30)

_SHOWN_MAX = 10_000
"""Maximum number of characters of records and states in a message, the only report of a machine."""


def machine_settings() -> settings:
    """Return the settings of a machine's test case: as many examples as checks try histories.

    >>> machine_settings().max_examples
    100
    """
    return settings(
        max_examples=Effort().inputs(),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=[phase for phase in settings().phases if phase is not Phase.explain],  # it is slow
    )


@st.composite
def _epochs(draw: st.DrawFn) -> Epoch:
    """Draw the next epoch of a machine."""
    machine: JobMachine = draw(st.runner())
    return machine.epochs.assembled(machine.scene, machine.reached, draw(machine.epochs.drawn))


_SCENES = st.runner().flatmap(lambda machine: machine.epochs.scenes)


class JobModel(Protocol):
    """Interface of the model of a job: the methods of `JobHarness` that emit records."""

    def send(self, **records: Iterable[Any]) -> dict[str, list[Any]]:
        """Return the records of each sink for those of the sources."""

    def advance_watermark(self, to: dt.datetime) -> dict[str, list[Any]]:
        """Return the records of each sink when the watermark is `to`."""

    def advance_processing_time(self, to: dt.datetime) -> dict[str, list[Any]]:
        """Return the records of each sink at `to`."""


class JobMachine(RuleBasedStateMachine):
    """State machine that sends records to a job, advances time, crashes, rescales and restarts.

    After each epoch the records of each sink are compared with those of a model. By default that is
    the same job in one shard in memory, which never crashes. A subclass may have rules and
    invariants of its own.

    Attributes of a subclass:
        job: a job, a process function, or the output stream of an operator.
        backend: where rows are kept between epochs: "memory" or "rocksdb".
        events: the records of the sources, as for `check`.
        epochs: instead of them, `Epochs` of the sources.
        unit: the unit of the steps of time; None draws seconds, minutes or hours.

    Attributes:
        harness: the job that crashes.
        model: the model with which the job is compared.
        outputs: the records of each sink so far.
        now: the processing time.
        reached: the event time that the records have reached.
        scene: the keys and the unit of time of all epochs.

    >>> from collections.abc import Iterator
    >>> from typing import NamedTuple
    >>> from hypothesis import settings
    >>> from hypothesis.stateful import run_state_machine_as_test
    >>> import statekit as sk
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> @sk.process(key="customer")
    ... def spent(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    ...     total.update((total.get() or 0) + order.cents)
    ...     yield total.get() or 0
    >>> class Spent(JobMachine):
    ...     job = spent
    >>> run_state_machine_as_test(Spent, settings=settings(machine_settings(), max_examples=5))
    """

    job: ClassVar[Job | Process[Any, Any, Any] | Stream[Any]]
    backend: ClassVar[Backend] = "memory"
    events: ClassVar[Any] = None
    unit: ClassVar[dt.timedelta | None] = None
    subject: ClassVar[Subject]
    epochs: ClassVar[Epochs]
    model: JobModel

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "job" in vars(cls):
            cls.subject = Subject(cls.job)
        if vars(cls).keys() & {"job", "events"} and "epochs" not in vars(cls):
            cls.epochs = Epochs(cls.subject.sources.records(cls.events))
        cls.TestCase.settings = machine_settings()

    def __init__(self) -> None:
        if not hasattr(type(self), "subject"):
            raise StateTypeError(
                f"{type(self).__name__} has no job: name it in the class, as job = spent"
            )
        super().__init__()

    def make_model(self) -> JobModel:
        """Return the model that the job is compared with.

        Override it to compare with `ProcessModel(function)`, or with a model of your own.
        """
        return JobHarness(self.subject.job, 1)

    def check(self, emitted: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
        """Compare the records of each sink in an epoch. By default their order does not matter.

        Parameters:
            emitted: the records that the job emits.
            expected: the records that the model emits, which may leave out sinks.
        """
        for sink, records in expected.items():
            lost, added = missing(records, emitted[sink]), missing(emitted[sink], records)
            assert not lost, _differ(sink, lost, added)
            assert not added, _differ(sink, lost, added)

    def check_contents(self) -> None:
        """Compare states, timers and the number of late records, if the model is a job harness."""
        if isinstance(self.model, JobHarness):
            found, expected = self.harness.contents(), self.model.contents()
            for what in ("states", "timers", "late"):
                one, other = getattr(found, what), getattr(expected, what)
                assert is_same(one, other), (
                    f"{what} are {shown(one, _SHOWN_MAX)}, and {shown(other, _SHOWN_MAX)} are "
                    "expected"
                )

    # --------------------------------------------------------------------------------------- rules

    @initialize(shards=_SHARDS, scene=_SCENES)
    def start(self, shards: int, scene: Scene) -> None:
        """Start the job.

        Parameters:
            scene: the values that all epochs share.
        """
        self.scene = scene if self.unit is None else scene._replace(unit=self.unit)
        self.reached = Reached()
        self.now = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        self.harness = JobHarness(self.subject.job, shards, self.backend)
        self.model = self.make_model()
        self.outputs: dict[str, list[Any]] = {name: [] for name in self.harness.outputs}

    @rule(epoch=_epochs())
    def send(self, epoch: Epoch) -> None:
        """Send the records of an epoch."""
        self.reached, records = epoch
        self._compare(self.model.send(**records), self.harness.send(**records))

    @rule(epoch=_epochs())
    def send_and_crash_before_the_commit(self, epoch: Epoch) -> None:
        """Send the records of an epoch, crash after records were published, and send them again."""
        self.reached, records = epoch
        expected = self.model.send(**records)
        self.check(self.harness.attempt(records), expected)
        self._compare(expected, self.harness.send(**records))

    @rule()
    def crash(self) -> None:
        """Crash between two epochs."""
        self.harness.crash()

    @precondition(lambda self: self.subject.undivided is None)
    @rule(shards=_SHARDS)
    def rescale(self, shards: int) -> None:
        """Restart the job with another number of shards."""
        self.harness.rescale(shards)

    @rule()
    def restart_elsewhere(self) -> None:
        """Copy the checkpoint, and start the job from the copy."""
        shards, job = self.harness.parallelism, self.subject.job
        with tempfile.TemporaryDirectory(prefix="statekit-machine-") as directory:
            copied = Path(directory) / "checkpoint"
            self.harness.checkpoint(copied)
            self.harness = JobHarness.restore(job, copied, shards, self.backend)

    @precondition(lambda self: self.harness.has_watermark)
    @rule(steps=_STEPS)
    def advance_watermark(self, steps: int) -> None:
        """Advance the watermark in an epoch without records."""
        begin = self.reached.begin
        to = (self.harness.watermark or begin) + steps * self.scene.unit
        self.reached = self.reached._replace(begin=max(begin, to))
        self._compare(self.model.advance_watermark(to), self.harness.advance_watermark(to))

    @rule(steps=_STEPS)
    def advance_processing_time(self, steps: int) -> None:
        """Advance the processing time in an epoch without records."""
        self.now += steps * self.scene.unit
        expected = self.model.advance_processing_time(self.now)
        self._compare(expected, self.harness.advance_processing_time(self.now))

    def _compare(self, expected: dict[str, list[Any]], emitted: dict[str, list[Any]]) -> None:
        for sink, records in emitted.items():
            self.outputs[sink] += records
        self.check(emitted, expected)
        self.check_contents()


def _differ(sink: str, lost: list[Any], added: list[Any]) -> str:
    return (
        f"sink {sink!r} is missing {shown(lost, _SHOWN_MAX)}, and has {shown(added, _SHOWN_MAX)}, "
        "which are not expected"
    )
