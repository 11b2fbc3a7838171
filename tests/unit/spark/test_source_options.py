"""Options of the data sources: what they mean, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint.store_url import local_path
from statekit.spark.sources.changes_request import ChangesRequest, Start
from statekit.spark.sources.state_source import StateRequest
from statekit.testing import Harness
from tests.support.counting_job import Entry, tally


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("options #1 %20") / "c"
    harness = Harness(tally, checkpoint=root)
    for n in range(3):
        harness.send(Entry("a", n))
    return root


def given(checkpoint: Path, **options: Any) -> dict[str, str]:
    named = {"path": checkpoint, "operator": "tally", "state": "total", **options}
    return {name.lower(): str(value) for name, value in named.items() if value is not None}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"operator": None}, sk.StateTypeError, "needs the option operator"),
        ({"state": ""}, sk.StateTypeError, "needs the option state"),
        ({"path": None}, sk.StateTypeError, "needs the option path"),
        ({"stat": "x"}, sk.StateTypeError, "no such option.*did you mean state"),
        ({"epoch": "last"}, sk.StateTypeError, "epoch='last'.*a whole number from 0"),
        ({"epoch": "-1"}, sk.StateTypeError, "epoch='-1'.*a whole number from 0"),
        ({"epoch": 9}, sk.QueryError, "no epoch 9"),
        ({"operator": "lost"}, sk.QueryError, "no operator 'lost': it has tally"),
        ({"state": "lost"}, sk.QueryError, "no state 'lost'.*it has total, seen, parity"),
        ({"wideInts": "yes"}, sk.StateTypeError, "wideInts='yes'.*give true or false"),
        ({"path": "/lost"}, sk.RestoreError, "/lost"),
    ],
)
def test_a_wrong_option_of_a_state_is_an_error_that_advises(
    checkpoint: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        StateRequest.of(given(checkpoint, **options))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"state": "_timers"}, sk.QueryError, "no state '_timers'"),
        ({"startingEpoch": "first"}, sk.StateTypeError, 'the first epoch.*"earliest" or "latest"'),
        ({"startingEpoch": 2, "endingEpoch": 1}, sk.StateTypeError, "up to endingEpoch=1"),
        ({"maxEpochsPerTrigger": 0}, sk.StateTypeError, "a whole number from 1"),
        ({"reader": "../x"}, sk.StateTypeError, "reader='../x'.*names have letters"),
        ({"leaseTtl": "1 hour"}, sk.StateTypeError, "add .option..reader"),
        ({"reader": "r", "leaseTtl": "soon"}, sk.StateTypeError, "leaseTtl='soon'"),
        ({"reader": "r", "leaseTtl": "1 ms"}, sk.StateTypeError, "give a second or more"),
    ],
)
def test_a_wrong_option_of_changes_is_an_error_that_advises(
    checkpoint: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ChangesRequest.of(given(checkpoint, **options))


@pytest.mark.parametrize(
    ("starting", "start"),
    [
        (None, Start(2, is_snapshot=True)),
        ("Earliest", Start(0, is_snapshot=True)),
        ("0", Start(0, is_snapshot=True)),
        ("2", Start(1, is_snapshot=False)),
        ("3", Start(2, is_snapshot=False)),
    ],
)
def test_the_start_is_a_snapshot_or_the_epoch_before(
    checkpoint: Path, starting: str | None, start: Start
) -> None:
    request = ChangesRequest.of(given(checkpoint, startingEpoch=starting))
    assert request.start(request.changes().epochs, default="latest", last=2) == start


def test_a_start_after_the_last_epoch_is_an_error(checkpoint: Path) -> None:
    request = ChangesRequest.of(given(checkpoint, startingEpoch=4))
    with pytest.raises(sk.QueryError, match="has no epoch 3: it has 0 to 2"):
        request.start(request.changes().epochs, default="latest", last=2)


def test_a_relative_path_is_read_from_where_the_driver_is(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    request = StateRequest.of(given(Path("c")))
    assert local_path(request.checkpoint) == checkpoint
    assert request.epoch == 2
