"""Mirrors as the server knows them: what their checkpoint says, on the dashboard and as metrics."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import httpx
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.mirrors.registered import registered_mirrors
from tests.support.invoked import invoked
from tests.support.killable_processes import die, exit_code
from tests.support.served import Sale, sell, server
from tests.unit.server.test_access import token_file

SOLD = [Sale("rome", "tea", 4), Sale("oslo", "cup", 9), Sale("rome", "tea", 1)]


def mirrored(home: Path) -> sk.Mirror:
    table = sk.sinks.delta(home / "totals")
    return sk.mirror(home / "job", "sales.total", table, name="shop-totals")


def mirror_until_killed(home: Path) -> None:
    with mirrored(home) as mirror:
        mirror.catch_up()
        die()


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_a_mirror_that_was_killed_is_dead_and_its_lag_grows(tmp_path: Path) -> None:
    sell(tmp_path / "job", SOLD[:2])
    assert exit_code(mirror_until_killed, tmp_path) == -signal.SIGKILL
    sell(tmp_path / "job", SOLD)
    (mirror,) = registered_mirrors(Repository(tmp_path / "job"))
    assert (mirror.status, mirror.epoch, mirror.lag(2)) == ("dead", 1, 1)
    with server({"shop": tmp_path / "job"}) as address:
        metrics = httpx.get(f"{address}/metrics").text
        page = text_of(httpx.get(f"{address}/-/shop").text)
    assert 'statekit_mirror_epochs_behind{job="shop",mirror="shop-totals"} 1.0' in metrics
    assert f"shop-totals sales.total delta:{tmp_path}/totals 1 1 dead" in page


def test_a_mirror_runs_and_is_stopped(tmp_path: Path) -> None:
    sell(tmp_path / "job", SOLD)
    with mirrored(tmp_path) as running:
        running.catch_up()
        assert [each.status for each in registered_mirrors(Repository(tmp_path / "job"))] == [
            "running"
        ]
        done = invoked("mirror", str(tmp_path / "job"), "--forget", "shop-totals")
        assert "runs: stop it first" in str(done.exception)
    (mirror,) = registered_mirrors(Repository(tmp_path / "job"))
    assert (mirror.status, mirror.lag(2)) == ("stopped", 0)
    assert invoked("mirror", str(tmp_path / "job"), "--forget", mirror.name).exit_code == 0
    assert registered_mirrors(Repository(tmp_path / "job")) == []


def test_a_token_sees_the_mirrors_of_its_states_alone(tmp_path: Path) -> None:
    sell(tmp_path / "job", SOLD)
    with mirrored(tmp_path) as mirror:
        mirror.catch_up()
    own, other = ("own", "own", ["shop/sales/total"]), ("one", "one", ["shop/sales/last"])
    tokens = token_file(tmp_path / "tokens.json", own, other)
    with server({"shop": tmp_path / "job"}, tokens=tokens) as address:
        port = address.rpartition(":")[2]
        cookies = [{"Cookie": f"statekit-token-{port}={token}"} for token in ("own", "one")]
        pages = [httpx.get(f"{address}/-/shop", headers=cookie).text for cookie in cookies]
    assert ["shop-totals" in page for page in pages] == [True, False]


@pytest.mark.parametrize("name", ["none", ""])
def test_an_unknown_mirror_is_not_forgotten(tmp_path: Path, name: str) -> None:
    sell(tmp_path / "job", SOLD)
    done = invoked("mirror", str(tmp_path / "job"), "--forget", name)
    assert "has no mirror" in str(done.exception)
