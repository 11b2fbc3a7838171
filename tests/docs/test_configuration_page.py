"""The page of the configuration names all options and variables."""

from __future__ import annotations

import inspect
from dataclasses import fields

from statekit.checkpoint.object_store import StoreOptions
from statekit.job.job import Job
from statekit.job.options import RunArguments, StartArguments
from tests.support.places import DOCS

PAGE = (DOCS / "reference" / "configuration.md").read_text()
ELSEWHERE = {"self", "spark", "inputs", "outputs", "checkpoint", "options"}
"""Parameters that are the start itself, and not how it is done."""


def test_each_option_of_a_start_is_named() -> None:
    options = {*RunArguments.__annotations__, *StartArguments.__annotations__}
    for start in (Job.run, Job.start):
        options |= {*inspect.signature(start).parameters} - ELSEWHERE
    assert [name for name in sorted(options) if f"`{name}=" not in PAGE] == []


def test_each_variable_of_stores_is_named_with_its_default() -> None:
    for field in fields(StoreOptions):
        assert f"| `STATEKIT_STORE_{field.name.upper()}` | {field.default:g} |" in PAGE
