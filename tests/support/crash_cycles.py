"""Crashes, one after the other, on one checkpoint: each cycle is a process that comes to harm.

The supervisor starts the processes and harms them, and everything it chooses follows from one seed.
After each cycle it holds the checkpoint, read from outside, against two things that share nothing
with it: what processes said was acknowledged and published, and a model in plain Python.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.manifest_pages import ManifestPages
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import apply_plan, restore_plan
from statekit.maintenance.verify.verify import verify
from statekit.query.rows.reader import CheckpointReader
from statekit.timestamp import instant
from tests.support import killable_processes as children
from tests.support.crash_job import EPOCH_SIZE, KEY_GROUPS, Model
from tests.support.crash_process import DONE, FAILED, FENCED, REFUSED, Fault, Life, collect, live
from tests.support.timeouts import PATIENCE_S

KINDS = {
    "killed at a moment": 5,
    "killed at a call": 6,
    "store fails": 4,
    "store stumbles": 2,
    "disk full": 2,
    "stopped, then overtaken": 4,
    "rolled back, killed at a call": 3,
    "undisturbed": 1,
}
"""What happens to a process, and how often."""

COPIES = {"kept": 6, "deleted": 2, "an old one again": 3, "a file lost": 2}
"""What happens to the working copies before it starts."""

BASES = {"bases": 4, "bases now and then": 2, "neither": 1}
"""What processes do to keep restores short, and how often."""

RETENTIONS = (None, 2, 3, 4, 5)
"""How many epochs a process keeps."""

_NOON_US = 1_767_268_800_000_000
_KILLED = -signal.SIGKILL

Outputs = list[list[Any]]


class Cycles:
    """One checkpoint and its records.

    Parameters:
        home: an empty directory.
        seed: of the input, and of all choices.
        kinds: what happens to its processes, and how often.

    Attributes:
        counts: how many of each kind of harm there were.
    """

    def __init__(self, home: Path, seed: int, kinds: Mapping[str, int] = KINDS) -> None:
        self.counts: Counter[str] = Counter()
        self._home = home
        self._seed = seed
        self._kinds = kinds
        self._chosen = random.Random()
        self._lives = 0
        self._cycles = 0
        self._clock_us = _NOON_US
        self._models: dict[int | None, Model] = {None: Model()}
        self._manifests: dict[int, EpochManifest] = {}
        for name in ("ready", "acknowledged", "published", "collected", "logs"):
            (home / name).mkdir(parents=True)

    def told(self) -> str:
        """What happened, in a line."""
        counts = "; ".join(f"{what}: {count}" for what, count in sorted(self.counts.items()))
        return f"seed {self._seed}, {self._lives} processes: {counts}"

    # ------------------------------------------------------------------------------- harm

    def cycle(self) -> None:
        """Let a process come to harm, then check everything.

        Raises:
            AssertionError: something is wrong; says what, and how to see it again.
        """
        # What is chosen in a cycle does not depend on how far processes came in those before.
        self._chosen = random.Random(f"{self._seed} {self._cycles}")
        kind = self._kind_of(self._cycles)
        self._cycles += 1
        copies = self._one_of(COPIES)
        clock = self._chosen.choice(["goes on", "goes on", "jumps ahead", "jumps back"])
        self.counts.update([kind, f"copies {copies}", f"clock {clock}"])
        self._clock_us += {
            "goes on": 2_000_000,
            "jumps ahead": self._chosen.randrange(3_600_000_000),
            "jumps back": -self._chosen.randrange(3_600_000_000),
        }[clock]
        try:
            self._harm_copies(copies)
            collector = self._collector() if self._chosen.random() < 0.4 else None
            self._harm(kind)
            if collector is not None:
                self._ends(collector, DONE, FAILED, _KILLED)
            self._check()
        except AssertionError as error:
            error.add_note(
                f"seed {self._seed}, cycle {self._cycles}: {kind}, copies {copies}, clock {clock}"
            )
            for log in sorted((self._home / "logs").iterdir(), key=lambda log: int(log.name))[-3:]:
                error.add_note(f"process {log.name}: {log.read_text()[-3000:]}")
            raise

    def _kind_of(self, cycle: int) -> str:
        """Each kind as often as it should be, in any order, before all begin anew."""
        kinds = [kind for kind, times in self._kinds.items() for _ in range(times)]
        turn, place = divmod(cycle, len(kinds))
        random.Random(f"{self._seed} kinds {turn}").shuffle(kinds)
        return kinds[place]

    def _one_of(self, weights: dict[str, int]) -> str:
        return self._chosen.choices(list(weights), list(weights.values()))[0]

    def _harm_copies(self, how: str) -> None:
        """Between two processes, whatever a host may do to what is only a cache."""
        working, old = self._home / "working", self._home / "old"
        if how == "deleted":
            shutil.rmtree(working, ignore_errors=True)
        elif how == "a file lost":
            there = sorted(path for path in working.rglob("*") if path.is_file())
            if there:
                self._chosen.choice(there).unlink()
        elif how == "an old one again" and old.exists():
            shutil.rmtree(working, ignore_errors=True)
            old.rename(working)
        if not old.exists() and working.exists() and self._chosen.random() < 0.5:
            shutil.copytree(working, old)

    def _harm(self, kind: str) -> None:
        call = Fault(
            at=self._chosen.randint(1, 35),
            after=self._chosen.random() < 0.5,
            early=self._chosen.random() < 0.3,
        )
        match kind:
            case "killed at a moment":
                process = self._start()
                self._signal_later(process, signal.SIGKILL)
                self._ends(process, _KILLED, DONE)
            case "killed at a call":
                self._ends(self._start(call, what="die"), _KILLED, DONE)
            case "store fails":
                times = self._chosen.choice([1, 1, 2, 5])
                process = self._start(call, what="fail", reads=True, times=times)
                self._ends(process, FAILED, FENCED, DONE)
            case "store stumbles":
                self._ends(self._start(stumbles=self._chosen.choice([0.02, 0.1, 0.3])), DONE)
            case "disk full":
                kib = self._chosen.choice([0, 1, 2, 4, 16, 48, 64, 100])
                self._ends(self._start(file_bytes=kib * 1024), FAILED, DONE)
            case "stopped, then overtaken":
                if self._chosen.random() < 0.7:
                    self._overtake(self._start(call, what="stop", early=False, epochs=12))
                else:
                    zombie = self._start(epochs=12)
                    self._signal_later(zombie, signal.SIGSTOP)
                    self._overtake(zombie)
            case "rolled back, killed at a call":
                process = self._start(call, what="die", back_to=self._earlier())
                self._ends(process, _KILLED, DONE, REFUSED)
            case _:
                self._ends(self._start(), DONE)

    def _collector(self) -> ForkServerProcess:
        """A process that collects garbage beside the others, and may come to harm itself."""
        what = self._chosen.choice(["nothing", "die", "die", "fail"])
        fault = Fault(at=self._chosen.randint(1, 60), after=self._chosen.random() < 0.5)
        self.counts[f"collector: {what}"] += 1
        retention = self._chosen.choice(RETENTIONS[1:])
        return self._start(fault, collect, what=what, reads=True, retention=retention, early=False)

    def _start(
        self, fault: Fault | None = None, target: Callable[..., object] = live, **given: Any
    ) -> ForkServerProcess:
        self._lives += 1
        of_fault = ("what", "times", "reads", "early")
        wanted = {name: given.pop(name) for name in of_fault if name in given}
        base = Fault() if fault is None else fault
        life = Life(
            number=self._lives,
            seed=self._seed,
            home=self._home,
            parallelism=self._chosen.choice([1, 2, 2, 3]),
            epochs=given.pop("epochs", self._chosen.randint(1, 5)),
            clock_us=self._clock_us,
            fault=Fault(**{**vars(base), **wanted}),
            bases=self._one_of(BASES),
            drains=self._chosen.random() < 0.6,
            retention=given.pop("retention", self._chosen.choice(RETENTIONS)),
            **given,
        )
        return children.start(target, life)

    def _earlier(self) -> int | None:
        """An epoch that can be gone back to: one of the last few of the history."""
        found: list[int] = []
        epoch = max(self._manifests, default=None)
        while epoch is not None and len(found) < 6:
            found.append(epoch)
            epoch = self._manifests[epoch].previous
        return self._chosen.choice(found[1:]) if len(found) > 1 else None

    def _signal_later(self, process: ForkServerProcess, what: signal.Signals) -> None:
        """Wait until a process begins its first epoch, and some time more."""
        delay_s = self._chosen.uniform(0.0, 0.25)
        until = time.monotonic() + PATIENCE_S
        while not (self._home / "ready" / str(self._lives)).exists() and process.is_alive():
            assert time.monotonic() < until, "it never started"
            time.sleep(0.002)
        time.sleep(delay_s)
        if process.is_alive():
            _send(process, what)

    def _overtake(self, zombie: ForkServerProcess) -> None:
        """Let others run while a process is stopped somewhere in an epoch; then it goes on."""
        if not _is_stopped(zombie):
            self._ends(zombie, DONE)
            return
        stood = max(Repository(self._home / "checkpoint").epochs(), default=-1)
        second = self._start(epochs=self._chosen.randint(0, 4))
        if at_once := self._chosen.random() < 0.3:
            _send(zombie, signal.SIGCONT)
        self._ends(second, DONE, *((FENCED,) if at_once else ()))
        overtaken = max(Repository(self._home / "checkpoint").epochs(), default=-1) > stood
        if not at_once:
            _send(zombie, signal.SIGCONT)
        # Unless it was overtaken it has every right to go on.
        self._ends(zombie, *((FENCED,) if overtaken and not at_once else (FENCED, DONE)))
        self.counts["fenced"] += zombie.exitcode == FENCED

    def _ends(self, process: ForkServerProcess, *ways: int) -> None:
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            raise AssertionError("it hung")
        assert process.exitcode in ways, f"it ended with {process.exitcode}, not one of {ways}"
        self.counts[f"ended with {process.exitcode}"] += 1

    # ------------------------------------------------------------------------------ checks

    def _check(self) -> None:
        repository, pages = Repository(self._home / "checkpoint"), ManifestPages()
        epochs = repository.epochs()
        acknowledged, published = self._acknowledged(), self._published()
        found = self._all_manifests()
        made = sorted(found)
        assert acknowledged.keys() <= set(made), "an epoch is lost that was acknowledged"
        assert all(len(lives) == 1 for lives in acknowledged.values()), "by two processes"
        for epoch in made:
            if epoch not in self._manifests:
                data = found[epoch].read_bytes()
                manifest, _ = pages.parsed(repository, str(found[epoch]), data, gaps=True)
                self._manifests[epoch] = manifest
                self._advance(manifest, published.get(epoch, []))
        assert made == list(range(len(made))), "a number was left out"
        assert published.keys() <= {*made, len(made)}, "outputs of an epoch that nobody began"
        if epochs:
            # Rows are held against the model; whether each of them is in order is asked less often.
            verified = verify(repository, rows=self._cycles % 10 == 0)
            wrong = [finding.what for finding in verified.findings]
            assert not wrong, f"{len(wrong)} findings, such as {wrong[:3]}"
            self.counts["files verified"] += verified.files
            older = self._chosen.choice(epochs) if self._chosen.random() < 0.5 else epochs[-1]
            for epoch in {epochs[-1], older}:
                self._check_state(epoch)
            self._count_files(self._manifests[epochs[-1]])

    def _all_manifests(self) -> dict[int, Path]:
        """Those that were ever committed, those that were given up included."""
        folders = self._home / "collected", self._home / "checkpoint" / "epochs"
        return {int(path.stem): path for folder in folders for path in folder.glob("*.json")}

    def _count_files(self, manifest: EpochManifest) -> None:
        """What the last epoch is made of, so that it can be told whether all of it occurred."""
        for shard in manifest.operators["watch"].shards:
            self.counts["shards on a base"] += shard.base is not None
            self.counts["shards with a history"] += shard.history is not None

    def _advance(self, manifest: EpochManifest, published: list[Outputs]) -> None:
        """Hold one more committed epoch, and what was published under its number, against it."""
        epoch = manifest.epoch
        before = self._models[manifest.previous]
        self.counts["epochs"] += 1
        if manifest.cause != "records":
            self._models[epoch] = before
            self.counts["gone back"] += 1
            return
        if epoch:
            last = self._manifests[epoch - 1].processing_time_us
            assert manifest.processing_time_us >= last, f"epoch {epoch}: time went back"
        now = instant(manifest.processing_time_us)
        model = self._models[epoch] = before.after(self._seed, now)
        assert manifest.offsets == {"seen": before.offset + EPOCH_SIZE}, f"epoch {epoch}"
        assert published, f"epoch {epoch} was committed and never published"
        for found in published:
            both = [row for row in found if row in model.outputs]
            differing = [row for row in (*found, *model.outputs) if row not in both]
            assert found == model.outputs, f"epoch {epoch} was published otherwise: {differing}"
        self.counts["published again"] += len(published) - 1

    def _check_state(self, epoch: int) -> None:
        """Hold what is there after an epoch that is kept against the model."""
        model = self._models[epoch]
        reader = _Reader(self._home / "checkpoint", epoch=epoch)
        for name, expected in model.states().items():
            found = {key: _plain(held) for key, held in reader.rows("watch", name, self._home)}
            found = {key: held for key, held in found.items() if held not in (0, [], {})}
            assert found == expected, f"state {name!r} after epoch {reader.manifest.epoch}"
        counted = reader.operator_state("watch", "handled")  # None of shards without a record yet
        assert sum(count or 0 for count in counted) == len(model.handled())
        logged = [number for shard in reader.operator_state("watch", "log") for number in shard]
        assert sorted(logged) == model.handled(), "the list of shards"
        assert reader.manifest.operators["watch"].late_so_far == model.late

    def _acknowledged(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for path in (self._home / "acknowledged").iterdir():
            epoch, life = map(int, path.name.split("-"))
            found[epoch].append(life)
        return found

    def _published(self) -> dict[int, list[Outputs]]:
        """What was published under each number, by all processes that got so far."""
        found: dict[int, list[Outputs]] = defaultdict(list)
        for path in (self._home / "published").glob("[!.]*"):
            epoch = int(path.name.split("-")[0])
            if epoch not in self._manifests:
                found[epoch].append(json.loads(path.read_text()))
        return found


class _Reader(CheckpointReader):
    """Reads a checkpoint of few rows without unpacking it anew for each state."""

    _held: _KeptOpen | None = None

    def unpack(self, operator: str, *_: object, **__: object) -> Any:
        if self._held is None:
            record = self.operator(operator)
            self._held = _KeptOpen(record.holds)
            plan = restore_plan(self.repository, self.manifest, operator, 0, KEY_GROUPS - 1)
            apply_plan(self.repository, self._held, plan)
        return self._held


class _KeptOpen(MemoryBackend):
    def close(self) -> None:
        """Others will read it."""


def _send(process: ForkServerProcess, what: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, what)


def _is_stopped(process: ForkServerProcess) -> bool:
    """Wait until a process is stopped, or has ended."""
    until = time.monotonic() + PATIENCE_S
    while process.is_alive():
        try:
            status = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False  # it has ended since
        if status == "T":
            return True
        assert time.monotonic() < until, "it neither stopped nor ended"
        time.sleep(0.005)
    return False


def _plain(held: Any) -> Any:
    """Entries of a map whose keys are numbers come as pairs."""
    if isinstance(held, list) and held and isinstance(held[0], list):
        return dict(held)
    return held
