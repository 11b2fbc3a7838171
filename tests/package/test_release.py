"""The release script, on a clone of its own: what it refuses, and what it builds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.places import ROOT

SCRIPT = ".ci/release"
DATED = "## 7.1.0 (2026-12-01)\n\nThe first release.\n"


def git(clone: Path, *words: str) -> None:
    names = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    subprocess.run(["git", *names, *words], cwd=clone, check=True, capture_output=True)


def release(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "STATEKIT_CI_PASSED": "yes"}
    return subprocess.run(
        ["bash", SCRIPT, *words], cwd=clone, env=given, capture_output=True, text=True, check=False
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with the files of this one, and without its history."""
    made = tmp_path / "clone"
    made.mkdir()
    packed = tmp_path / "files.tar"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run(
        ["tar", "--null", "--files-from=-", "--create", f"--file={packed}"],
        cwd=ROOT, input=listed, check=True,
    )  # fmt: skip
    subprocess.run(["tar", "--extract", f"--file={packed}"], cwd=made, check=True)
    git(made, "init", "--quiet", "--initial-branch=main")
    change_log(made, DATED)
    return made


def change_log(clone: Path, section: str) -> None:
    (clone / "CHANGELOG.md").write_text(f"# Changelog\n\n{section}")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message=all files")


def test_a_release_is_refused_with_changes_that_are_not_committed(clone: Path) -> None:
    git(clone, "tag", "v7.1.0")
    (clone / "README.md").write_text("changed")
    done = release(clone)
    assert done.returncode == 1
    assert "README.md" in done.stderr
    assert "Commit or remove" in done.stderr


def test_a_release_is_refused_without_a_tag_at_its_commit(clone: Path) -> None:
    done = release(clone)
    assert done.returncode == 1
    assert "git tag v" in done.stderr


@pytest.mark.parametrize("section", ["## Unreleased\n", "## 7.1.0\n", "## 7.0.9 (2026-12-01)\n"])
def test_a_release_is_refused_without_its_section_of_the_changelog(
    clone: Path, section: str
) -> None:
    change_log(clone, section)
    git(clone, "tag", "v7.1.0")
    done = release(clone)
    assert done.returncode == 1
    assert "## 7.1.0 (YYYY-MM-DD)" in done.stderr


def test_a_release_is_refused_before_ci_has_passed(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(clone, "tag", "v7.1.0")
    monkeypatch.delenv("STATEKIT_CI_PASSED", raising=False)
    done = subprocess.run(["bash", SCRIPT], cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "bash .ci/run" in done.stderr


@pytest.mark.slow
def test_a_release_is_built_checked_installed_and_not_uploaded(clone: Path) -> None:
    git(clone, "tag", "v7.1.0")
    done = release(clone)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (clone / "dist").iterdir())
    assert names == ["statekit-7.1.0-py3-none-any.whl", "statekit-7.1.0.tar.gz"]
    assert "Nothing was uploaded" in done.stdout
