"""Runs in copies of a process, which are killed, leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import statekit as sk
from statekit.testing.drivers import memory_directory
from statekit.testing.drivers.processes import OtherProcess, call_functions
from statekit.testing.runs.new_processes import found_there
from statekit.testing.runs.subject import Subject

KEPT: list[Any] = []


@sk.process(key="word")
def counted(record: dict[str, Any], seen: sk.ValueState[int]) -> Iterator[int]:
    seen.update((seen.get() or 0) + 1)
    yield seen.get() or 0


def keep_a_harness(subject: Subject, history: Any, place: Path) -> list[str]:
    """Keep a harness until the process is killed, and return the files of all harnesses."""
    KEPT.append(subject.harness())
    return [path.name for path in place.rglob("*.json")]


def files_of_a_killed_copy(place: Path) -> tuple[list[str], list[Path]]:
    with patch.object(memory_directory, "_IN_MEMORY", place):
        during = found_there(Subject(counted).pickled, keep_a_harness, [], place)
    return during, list(place.iterdir())


@pytest.mark.slow
def test_a_copy_that_is_killed_with_a_harness_leaves_no_file(tmp_path: Path) -> None:
    with OtherProcess("runs histories", call_functions, {}) as process:
        during, after = process.call(files_of_a_killed_copy, tmp_path)
    assert during == ["job.json"]
    assert after == []
