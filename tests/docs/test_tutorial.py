"""The tutorial is true: its files and commands, in a new environment, print what it says."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.places import DOCS, ROOT
from tests.support.ports import free_port

PAGE = DOCS / "start" / "tutorial.md"
_BLOCK = re.compile(r"(?:<!-- ([^\n]*) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


class Block(NamedTuple):
    note: str
    language: str
    text: str


def blocks() -> list[Block]:
    port = str(free_port())
    return [Block(*found) for found in _BLOCK.findall(PAGE.read_text().replace("8321", port))]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_prints_what_it_says_in_a_new_environment(tmp_path: Path) -> None:
    clone(tmp_path / "statekit")
    with Shell(tmp_path) as shell:
        printed = ""
        for note, language, text in blocks():
            if note.startswith("file "):
                (tmp_path / note.removeprefix("file ")).write_text(text)
            elif language == "sh":
                printed = shell.run(text)
            else:
                assert note == "prints, at the end", text
                said = re.escape(text).replace("…", r"\d+")
                assert re.search(f"{said}$", printed), f"{text}\nis not the end of\n{printed}"


def test_each_block_of_the_tutorial_is_a_file_or_commands_or_what_they_print() -> None:
    found = blocks()
    kinds = [of.language if of.language == "sh" else of.note.partition(" ")[0] for of in found]
    assert set(kinds) == {"sh", "file", "prints,"}
    for before, kind in itertools.pairwise(kinds):
        assert kind != "prints," or before == "sh"


def clone(into: Path) -> None:
    """Copy what an installation needs."""
    into.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, into)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "statekit", into / "statekit", ignore=ignored)


class Shell:
    """One shell, so that a block has the variables and processes of those before.

    Parameters:
        home: the directory of the tour.
    """

    _END = "--end of a block--"

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def run(self, commands: str) -> str:
        """Run commands up to the first that fails, and return what they print.

        Raises:
            AssertionError: one has failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"set -e\n{commands}\nset +e\nprintf '\\n{self._END}\\n'\n")
        self._process.stdin.flush()
        printed = ""
        for line in self._process.stdout:
            if line.strip() == self._END:
                return printed.removesuffix("\n")  # that which ends a last line without an end
            printed += line
        raise AssertionError(f"{commands}\nhas failed:\n{printed}")
