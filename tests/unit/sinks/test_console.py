"""What a sink prints on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

import statekit as sk
from tests.support.sinks import ORDERS, Order, spending_job


def test_the_outputs_of_an_epoch_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    spending_job(sk.sinks.console()).run({"orders": [Order("ada", 500), Order("ada", 200)]})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "spent, epoch 0: 2 rows"
    cells = [line.strip("┃│").split() for line in printed if "ada" in line or "cents" in line]
    assert [[cell for cell in row if cell not in "┃│"] for row in cells] == [
        ["customer", "cents"],
        ["ada", "500"],
        ["ada", "700"],
    ]


def test_more_rows_than_the_limit_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    spending_job(sk.sinks.console(limit=2)).run({"orders": ORDERS})
    printed = capsys.readouterr().out
    assert printed.count("│") == 2 * 3
    assert printed.endswith("and 10 more\n")


def test_an_epoch_without_outputs_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    spending_job(sk.sinks.console()).run({"orders": []})
    assert capsys.readouterr().out == ""


class Note(NamedTuple):
    author: str
    text: str | None
    tags: list[str]


@sk.process(key="author")
def echo(note: Note, seen: sk.ValueState[int]) -> Iterator[Note]:
    yield note


def test_values_change_nothing_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    job = sk.Job("notes")
    job.source("notes", Note).process(echo).sink("echo", sk.sinks.console())
    job.run({"notes": [Note("ada", "\x1b[31m[red]", ["a", "b"]), Note("bob", None, [])]})
    printed = capsys.readouterr().out
    assert "\\x1b[31m[red]" in printed
    assert '["a","b"]' in printed
    assert "–" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize("limit", [-1, True, "3"])
def test_a_limit_that_is_no_number_of_rows_is_refused(limit: int) -> None:
    with pytest.raises(sk.StateTypeError, match="give a number of rows"):
        sk.sinks.console(limit)
