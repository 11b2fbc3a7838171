"""Files appear and grow, epochs have any size, runs start again: each record is read once."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import statekit as sk
from statekit.records.union import records_of
from statekit.sources import FileSource
from tests.support.effort import SOAK


class Line(NamedTuple):
    number: int


SETTINGS = settings(max_examples=200 if SOAK else 12, stateful_step_count=20, deadline=None)


class Reading(RuleBasedStateMachine):
    """Reads a source by epochs. Its offsets go through JSON, as in a manifest."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.place = Path(self.home.name)
        self.written: list[int] = []
        self.read: list[int] = []
        self.source = self.made()
        self.source.open(reads_here=True)
        self.offsets = self.source.earliest()

    def made(self) -> FileSource:
        return sk.sources.json_lines(self.place)

    def more(self, count: int) -> list[int]:
        """New numbers."""
        return list(range(self.so_far, self.so_far + count))

    @property
    def so_far(self) -> int:
        return len(self.written)

    @rule(limit=st.integers(1, 12))
    def epoch(self, limit: int) -> None:
        end = json.loads(json.dumps(self.source.latest(self.offsets, limit, 0.0)))
        if end == self.offsets:
            return
        found = self.numbers(self.source, end)
        assert 1 <= len(found) <= limit
        assert self.numbers(pickle.loads(pickle.dumps(self.source)), end) == found
        self.read += found
        self.offsets = end

    def numbers(self, source: FileSource, end: Any) -> list[int]:
        decode = source.decoder(records_of(Line, where="lines"), "lines")
        batches = source.read("all", self.offsets["all"], end["all"])
        return [record.number for batch in batches for record in decode("all", batch).records]

    @rule(here=st.booleans())
    def restart(self, here: bool) -> None:
        self.source.close()
        self.source = self.made()
        self.source.open(reads_here=here)

    def rest(self) -> None:
        """Read what is left."""
        self.restart(here=True)
        before = -1
        while before < len(self.read):
            before = len(self.read)
            self.epoch(1000)

    def teardown(self) -> None:
        try:
            self.rest()
            self.check_all()
        finally:
            self.source.close()
            self.home.cleanup()

    def check_all(self) -> None:
        assert self.read == self.written


def lines(numbers: list[int]) -> bytes:
    return b"".join(b'{"number":%d}\n' % number for number in numbers)


class NewFiles(Reading):
    """Files whose names sort in the order of their appearance, some of them compressed."""

    @rule(count=st.integers(0, 8), packed=st.booleans(), folder=st.booleans())
    def file(self, count: int, packed: bool, folder: bool) -> None:
        numbers = self.more(count)
        content = lines(numbers)
        self.files = getattr(self, "files", 0) + 1
        name = f"{self.files:04d}/x" if folder else f"{self.files:04d}"
        path = self.place / name
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f"_{path.name}")
        draft.write_bytes(gzip.compress(content) if packed else content)
        draft.rename(path)
        self.written += numbers

    @invariant()
    def in_order(self) -> None:
        assert self.read == self.written[: len(self.read)]


class LateFiles(Reading):
    """Files of any name and of about the present time."""

    def made(self) -> FileSource:
        look_back = dt.timedelta(seconds=100)
        return sk.sources.json_lines(self.place, order="time", look_back=look_back)

    @rule(count=st.integers(1, 8), late_s=st.integers(0, 99))
    def file(self, count: int, late_s: int) -> None:
        numbers = self.more(count)
        self.now = getattr(self, "now", 1_000_000) + 7
        newest = max([self.now, *(self._newest() or [])])
        path = self.place / f"{hash((late_s, self.now)) % 1000:03d}-{self.so_far}"
        draft = path.with_name(f"_{path.name}")
        draft.write_bytes(lines(numbers))
        os.utime(draft, (newest - late_s, newest - late_s))
        draft.rename(path)
        self.written += numbers

    def _newest(self) -> list[float]:
        return [path.stat().st_mtime for path in self.place.iterdir()]

    def check_all(self) -> None:
        assert sorted(self.read) == self.written


class GrowingFile(Reading):
    """A file that grows by pieces of lines, and is rotated."""

    def made(self) -> FileSource:
        return sk.sources.json_lines(self.place / "app.log", tail=True)

    def write(self, data: bytes) -> None:
        path = self.place / "app.log"
        with path.open("ab") as file:
            file.write(data)
        self.now = getattr(self, "now", 1_000_000) + 1
        os.utime(path, (self.now, self.now))

    @rule(count=st.integers(1, 6), cut=st.integers(0, 20))
    def grow(self, count: int, cut: int) -> None:
        numbers = self.more(count)
        left = getattr(self, "left", b"") + lines(numbers)
        size = max(0, len(left) - cut)
        self.write(left[:size])
        self.left = left[size:]
        self.written += numbers

    @rule()
    def rotate(self) -> None:
        """Rename the file, also if the source has read nothing of it, or of the one before."""
        path = self.place / "app.log"
        if path.exists() and self.offsets["all"]["files"]:
            self.flush()
            self.rotations = getattr(self, "rotations", 0) + 1
            for number in range(self.rotations, 1, -1):
                (self.place / f"app.log.{number - 1}").rename(self.place / f"app.log.{number}")
            path.rename(self.place / "app.log.1")

    def flush(self) -> None:
        if left := getattr(self, "left", b""):
            self.write(left)
        self.left = b""

    def teardown(self) -> None:
        self.flush()
        super().teardown()

    @invariant()
    def in_order(self) -> None:
        assert self.read == self.written[: len(self.read)]


TestNewFiles = NewFiles.TestCase
TestLateFiles = LateFiles.TestCase
TestGrowingFile = GrowingFile.TestCase
TestNewFiles.settings = TestLateFiles.settings = TestGrowingFile.settings = SETTINGS
