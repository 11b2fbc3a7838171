"""The version of a package that is built: of a tag, without a tag, and without git."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.package.test_package import built, environment
from tests.support.command_line import output_of
from tests.support.places import ROOT

pytestmark = pytest.mark.slow


def git(repository: Path, *words: str) -> None:
    names = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    output_of("git", "-C", str(repository), *names, *words)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What a package is built from, without a repository."""
    made = tmp_path / "files"
    names = ["statekit", "pyproject.toml", "README.md", "LICENSE"]
    made.mkdir()
    output_of("cp", "-r", *(str(ROOT / name) for name in names), str(made))
    return made


@pytest.fixture
def repository(files: Path) -> Path:
    git(files, "init", "--quiet")
    (files / ".gitignore").write_text("__pycache__/\n*.egg-info/\n")
    git(files, "add", "--all")
    git(files, "commit", "--quiet", "--message=all files")
    return files


def version_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def test_files_without_git_have_the_fallback_version(files: Path, tmp_path: Path) -> None:
    assert version_of(built(files, tmp_path / "dist")) == "0.1.0.dev0"


def test_a_repository_without_tags_has_a_development_version(
    repository: Path, tmp_path: Path
) -> None:
    assert version_of(built(repository, tmp_path / "dist")).startswith("0.1.0.dev1+g")


def test_a_source_distribution_of_a_tag_has_its_version_without_git(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "tag", "v7.1.0")
    python = environment(tmp_path / "venv", "build")
    output_of(python, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(repository))
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert sdist.name == "statekit-7.1.0.tar.gz"
    assert version_of(built(sdist, tmp_path / "dist")) == "7.1.0"


def test_an_editable_installation_has_the_version_of_its_tag(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "tag", "v7.1.0")
    python = environment(tmp_path / "venv", "--editable", str(repository))
    printed = output_of(str(tmp_path / "venv/bin/statekit"), "--version")
    assert printed == "statekit 7.1.0\n"
    code = "import importlib.metadata as m; print(m.version('statekit'))"
    assert output_of(python, "-c", code) == "7.1.0\n"
