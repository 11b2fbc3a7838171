"""`statekit token`: a token is printed once, and the file has its digest."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.server.admission.access import Access, digest_of
from tests.support.invoked import invoked


def run(*options: str, file: Path) -> Any:
    return invoked("token", *options, "--tokens", file)


def listed(file: Path) -> dict[str, Any]:
    return {token["name"]: token for token in json.loads(file.read_text())["tokens"]}


def test_a_token_is_printed_once_and_reads_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    made = run("reports", "--read", "shop", "--read", "bank/balances", file=file)
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    assert len(secret) >= 43
    assert secret not in file.read_text()
    assert listed(file)["reports"]["sha256"] == digest_of(secret)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = Access(file).token(digest_of(secret))
    assert token is not None
    assert token.read == ("shop", "bank/balances")
    assert run("more", "--read", "*", file=file).exit_code == 0
    assert listed(file).keys() == {"reports", "more"}
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]


def test_a_name_that_exists_is_refused_or_replaced(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    first = run("reports", "--read", "shop", file=file).stdout.strip()
    refused = run("reports", "--read", "*", file=file)
    assert isinstance(refused.exception, sk.StateTypeError)
    assert "has a token 'reports' already" in str(refused.exception)
    assert listed(file)["reports"]["sha256"] == digest_of(first)
    second = run("reports", "--read", "bank", "--replace", file=file).stdout.strip()
    assert listed(file)["reports"] == {
        "name": "reports",
        "sha256": digest_of(second),
        "read": ["bank"],
    }


def test_a_token_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    for name in ("one", "two"):
        run(name, "--read", "shop", file=file)
    removed = run("one", "--remove", file=file)
    assert removed.exit_code == 0, removed.output
    assert listed(file).keys() == {"two"}
    again = run("one", "--remove", file=file)
    assert "has no token 'one': it has 'two'" in str(again.exception)


@pytest.mark.parametrize("scope", ["", "/", "shop/", "a/b/c/d", "shop//total", "/shop", "shop/a b"])
def test_what_is_no_scope_is_refused(tmp_path: Path, scope: str) -> None:
    refused = run("reports", "--read", scope, file=tmp_path / "tokens.json")
    assert "is nothing that a token may read" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["--remove", "--read", "x"], ["--remove", "--replace"]])
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: list[str]) -> None:
    assert run("reports", *options, file=tmp_path / "tokens.json").exit_code == 2


def test_a_file_that_is_none_of_tokens_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text("something else")
    refused = run("reports", "--read", "shop", file=file)
    assert isinstance(refused.exception, sk.StateTypeError)
    assert file.read_text() == "something else"


def test_a_directory_that_does_not_exist_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    refused = run("reports", "--read", "shop", file=tmp_path / "none" / "tokens.json")
    assert isinstance(refused.exception, sk.StorageError)
    assert "check that its directory exists" in str(refused.exception)


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "tokens.json"
    link.symlink_to(tmp_path / "real" / "tokens.json")
    assert run("reports", "--read", "shop", file=link).exit_code == 0
    assert link.is_symlink()
    assert listed(link).keys() == {"reports"}


def test_commands_at_one_time_add_all_their_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"

    def add(number: int) -> int:
        command = [sys.executable, "-m", "statekit.cli", "token", f"t{number}", "--read", "shop"]
        given = [*command, "--tokens", str(file)]
        return subprocess.run(given, capture_output=True, check=False).returncode

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(add, range(3))) == [0] * 3
    assert listed(file).keys() == {f"t{number}" for number in range(3)}
