"""Declarations that change from run to run, against plain Python: nothing is lost or misread."""

from __future__ import annotations

import tempfile
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from statekit.maintenance.migrate import Migration
from statekit.maintenance.sizes import counted_sizes
from statekit.query.rows.reader import CheckpointReader
from statekit.testing import Harness
from tests.support.effort import SOAK
from tests.support.evolution_driver import TYPES, Act, Kind, evolving, meant

KINDS: list[Kind] = list(TYPES)
KEYS = ["a", "b", "c"]
STATES = ("held", "listed", "mapped", "most")

acts = st.builds(
    Act,
    st.sampled_from(KEYS),
    st.sampled_from(["set", "append", "put", "add", "nothing", "nothing", "clear"]),
    st.integers(0, 1000),
)


class Model:
    """What a key holds, as numbers."""

    def __init__(self) -> None:
        self.held: int | None = None
        self.listed: list[int] = []
        self.mapped: dict[str, int] = {}
        self.most: int | None = None

    def take(self, act: Act) -> None:
        match act.what:
            case "set":
                self.held = act.number
            case "append":
                self.listed.append(act.number)
            case "put":
                self.mapped[str(act.number % 3)] = act.number
            case "add":
                self.most = max(act.number, self.most or 0)
            case "clear":
                self.__init__()  # type: ignore[misc]

    def as_kind(self, kind: Kind) -> dict[str, Any]:
        def of(number: int | None) -> Any:
            return None if number is None else meant(kind, number)

        return {
            "held": of(self.held),
            "listed": [of(number) for number in self.listed],
            "mapped": {name: of(number) for name, number in sorted(self.mapped.items())},
            "most": of(self.most),
        }


def numbers(shown: Any) -> Any:
    """What a reader without classes shows, as numbers."""
    if isinstance(shown, dict) and "cents" not in shown:
        return {name: numbers(part) for name, part in shown.items()}
    if isinstance(shown, list):
        return [numbers(part) for part in shown]
    return None if shown is None else int(shown["cents"] if isinstance(shown, dict) else shown)


class Evolving(RuleBasedStateMachine):
    """A job that is stopped, changed, started, migrated and killed."""

    backend: Any = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory(prefix="statekit-test-")
        self.kind: Kind = "int"
        self.ttl = False
        self.models = {key: Model() for key in KEYS}
        self.start(1)

    def start(self, parallelism: int) -> None:
        self.harness = Harness(
            self.declared, parallelism, 8, backend=self.backend, checkpoint=self.place.name
        )

    @property
    def declared(self) -> Any:
        return evolving(self.kind, ttl=self.ttl)

    @rule(given=st.lists(acts, min_size=1, max_size=6))
    def send(self, given: list[Act]) -> None:
        self.harness.send(*given)
        for act in given:
            self.models[act.key].take(act)

    @rule()
    def crash(self) -> None:
        self.harness.crash()

    @rule(kind=st.sampled_from(KINDS), ttl=st.booleans(), parallelism=st.integers(1, 3))
    def change(self, kind: Kind, ttl: bool, parallelism: int) -> None:
        self.kind, self.ttl = kind, ttl
        self.start(parallelism)

    @rule(kind=st.sampled_from(KINDS), ttl=st.booleans())
    def migrate(self, kind: Kind, ttl: bool) -> None:
        if self.harness.epoch is None:
            return
        self.kind, self.ttl = kind, ttl
        made = Migration(job_of(self.declared), self.place.name).run(lambda *_: None)
        again = Migration(job_of(self.declared), self.place.name)
        assert [report.succession.verdict for report in again.reports] == ["same"] * 4
        assert again.run(lambda *_: None) is None
        self.start(self.harness.parallelism)
        assert made is None or self.harness.epoch == made.epoch
        # Hooks are not needed any more.
        Harness(evolving(kind, ttl=ttl, hooks=False), checkpoint=self.place.name)

    @invariant()
    def every_state_holds_what_it_should(self) -> None:
        for key, model in self.models.items():
            for name, held in model.as_kind(self.kind).items():
                found = self.harness.state(name, key)
                assert (found, repr(found)) == (held, repr(held))

    @invariant()
    def readers_without_classes_see_the_same(self) -> None:
        if self.harness.epoch is None:
            return
        reader = CheckpointReader(self.place.name)
        for key, model in self.models.items():
            for name in STATES:
                shown = reader.get("evolve", name, key)
                assert numbers(shown) == getattr(model, name)

    @invariant()
    def rows_and_bytes_are_exact(self) -> None:
        if self.harness.epoch is None:
            return
        reader = CheckpointReader(self.place.name)
        counted = reader.manifest.operators["evolve"]
        sizes = counted_sizes(reader, "evolve").states
        for name in STATES:
            assert sizes[name].rows == counted.rows.get(name, 0)
            assert sizes[name].bytes == counted.bytes.get(name, 0)

    def teardown(self) -> None:
        self.place.cleanup()


def job_of(declared: Any) -> Any:
    """The job that a harness makes of a function."""
    return Harness(declared)._job


class EvolvingOnRocks(Evolving):
    backend = "rocksdb"


SOME = settings(
    max_examples=15 if SOAK else 8,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
Evolving.TestCase.settings = SOME
EvolvingOnRocks.TestCase.settings = settings(SOME, max_examples=4)
TestEvolving = Evolving.TestCase
TestEvolvingOnRocks = EvolvingOnRocks.TestCase
