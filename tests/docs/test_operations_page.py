"""The pages of docs/operate leave out nothing that an operator may meet."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

import statekit as sk
from statekit import errors
from statekit.checkpoint.object_store import StoreOptions
from statekit.checkpoint.retention import DEFAULT_RETENTION
from statekit.job.progress import Progress
from tests.support.places import DOCS, ROOT
from tests.support.scraped import METRICS

PAGE = "\n".join(page.read_text() for page in sorted((DOCS / "operate").glob("*.md")))


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_in_the_table_of_errors(name: str) -> None:
    cls = errors.error_class(name)
    if cls is not None:
        assert f"| `{cls.kind}` | `{name}` |" in PAGE


def test_every_logger_is_documented() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "statekit").rglob("*.py"))
    loggers = re.findall(r'getLogger\("(statekit[\w.]*)"\)', sources)
    assert loggers
    for logger in loggers:
        assert f"| `{logger}` |" in PAGE


def test_options_are_named_as_they_are_called() -> None:
    for options in (sk.RocksOptions, sk.BaseOptions, sk.Retention):
        known = {field.name for field in fields(options)}
        for given in re.findall(rf"{options.__name__}\(([^)]*)\)", PAGE):
            assert set(re.findall(r"(\w+)=", given)) <= known
        for named in re.findall(rf"{options.__name__}\.(\w+)", PAGE):
            assert named in known


def test_time_limits_of_the_store_are_documented_with_their_defaults() -> None:
    for field in fields(StoreOptions):
        name, default = field.name.upper(), f"{field.default:g}"
        assert re.search(rf"`(STATEKIT_STORE)?_{name}` \({default}\)", PAGE), name


def test_the_retention_that_is_advised_is_one() -> None:
    ages = re.findall(r'Retention\(age="([^"]+)"\)', PAGE)
    assert ages
    for age in ages:
        assert sk.Retention(age=age).age_us > 0


def test_the_default_retention_is_documented() -> None:
    assert f"Retention(epochs={DEFAULT_RETENTION.epochs})" in PAGE
    for last in (r"keeps the last", r"default of"):
        assert re.search(rf"\b{last} {DEFAULT_RETENTION.epochs}\b", " ".join(PAGE.split()))


def test_documented_fields_of_progress_exist() -> None:
    table = PAGE.split("| Field | Alert |")[1].split("\n\n")[0]
    told = re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.split("\n")[2:]))
    assert {"epoch", "seconds", "late"} <= set(told)
    known = {field.name for field in fields(Progress)} | {"events_per_second"}
    assert set(told) <= known


def test_every_metric_is_documented() -> None:
    table = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| "))
    metrics = {metric.name for metric in METRICS}
    assert set(re.findall(r"`(statekit_\w+)`", table)) == metrics


def test_alerts_are_of_metrics_that_exist() -> None:
    used = set(re.findall(r"\b(statekit_[a-z_]+)", PAGE.split("# rules")[1].split("```")[0]))
    known = {metric.name for metric in METRICS}
    histograms = {metric.name for metric in METRICS if metric.kind == "histogram"}
    known |= {f"{name}_{part}" for name in histograms for part in ("sum", "count", "bucket")}
    assert len(used) >= 5
    assert used <= known
