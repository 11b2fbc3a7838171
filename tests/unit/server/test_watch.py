"""Watching a state: what a watcher builds from the events is the state of each epoch."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.clock import sleep_s
from statekit.testing import Harness
from tests.support.all_row_kinds import START, Step, keep, run
from tests.support.events import EVENTS, Event, watching
from tests.support.served import Sale, sell, server


class Copy:
    """What a watcher knows."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.last: str | None = None
        self.resets = 0

    def until(self, events: Iterator[Event], epoch: int | None) -> None:
        """Apply events until an epoch is complete."""
        assert epoch is not None
        for event in events:
            self.apply(event)
            if event.name == "epoch" and event.data["epoch"] >= epoch:
                return
        raise AssertionError("the stream ended")

    def apply(self, event: Event) -> None:
        self.last = event.id or self.last
        if event.name == "reset":
            self.rows.clear()
            self.resets += 1
        elif event.name in ("row", "change"):
            own = (json.dumps(event.data["key"]), json.dumps(event.data.get("place")))
            if event.name == "change":
                assert self.rows.get(own) == event.data["before"]
            if event.data.get("op") == "delete":
                del self.rows[own]
            else:
                self.rows[own] = event.data["value"]
        else:
            assert event.name == "epoch"


def rows_of(home: Path, state: str) -> dict[Any, Any]:
    """The rows of the last epoch, read from the checkpoint."""
    with sk.Replica(home, follow=False) as replica, replica.at() as view:
        return {
            (json.dumps(key), json.dumps(place)): value
            for key, place, value in view.state("sales", state).rows()
        }


def end_of(home: Path, epoch: int) -> str:
    """The id of the event that ends an epoch."""
    return f"{Repository(home).manifest(epoch).id}-end"


RECORDS = [
    Sale("rome", "tea", 400),
    Sale("oslo", "cup", 900),
    Sale("rome", "pot", 2100),
    Sale("nice", "tea", 5),
    Sale("rome", "tea", 7),
]


@pytest.mark.parametrize("state", ["total", "items", "log", "last"])
def test_a_watcher_builds_the_state_of_each_epoch(tmp_path: Path, state: str) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS[:1])
    with server({"shop": home}) as address:
        copy = Copy()
        with watching(address, f"/shop/sales/{state}") as events:
            copy.until(events, 0)
            for count in range(2, len(RECORDS) + 1):
                sell(home, RECORDS[:count])
                copy.until(events, count - 1)
                assert copy.rows == rows_of(home, state)
        assert copy.resets == 1


def test_a_watcher_may_leave_out_the_rows_that_there_are(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS[:1])
    with server({"shop": home}) as address:
        with watching(address, "/shop/sales/total", rows="false") as events:
            assert [next(events).name for _ in range(2)] == ["reset", "epoch"]
            sell(home, RECORDS[:2])
            change = next(events)
            assert (change.name, change.data["key"]) == ("change", "oslo")
        with watching(address, "/shop/sales/total/rome", rows="false") as events:
            assert [next(events).name for _ in range(2)] == ["reset", "epoch"]


def test_a_watcher_that_comes_back_continues_after_its_last_event(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS[:1])
    with server({"shop": home}) as address, watching(address, "/shop/sales/total") as others:
        Copy().until(others, 0)  # keeps the changes of the state
        copy = Copy()
        with watching(address, "/shop/sales/items") as events:
            copy.until(events, 0)
            sell(home, RECORDS, epoch_size=4)
            for event in events:  # leaves in the middle of an epoch
                copy.apply(event)
                if event.name == "change":
                    break
            with watching(address, "/shop/sales/items", copy.last) as again:
                copy.until(again, 1)
        assert copy.rows == rows_of(home, "items")
        assert copy.resets == 1


def test_it_continues_after_the_rows_that_it_began_with(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS[:1])
    with server({"shop": home}) as address, watching(address, "/shop/sales/total") as others:
        copy = Copy()
        copy.until(others, 0)
        assert copy.last == end_of(home, 0)
        copy_last = copy.last
        sell(home, RECORDS)
        copy.until(others, 4)
        again = Copy()
        again.rows = {('"rome"', "null"): 400}
        with watching(address, "/shop/sales/total", copy_last) as events:
            again.until(events, 4)
        assert again.rows == copy.rows
        assert again.resets == 0


def test_a_head_request_watches_nothing(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS)
    with server({"shop": home}) as address:
        assert httpx.head(f"{address}/shop/sales/total", headers=EVENTS).status_code == 200
        assert "statekit_watchers 0.0" in httpx.get(f"{address}/metrics").text


def test_it_begins_again_if_its_last_event_is_not_known(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS[:3])
    with server({"shop": home}) as address:
        other = f"2-{'0' * 32}"
        for after in (end_of(home, 0), "2-end", f"{other}-end", f"{other}-1", "nonsense", "-1"):
            copy = Copy()
            with watching(address, "/shop/sales/total", after) as events:
                copy.until(events, 2)
            assert copy.rows == rows_of(home, "total")
            assert copy.resets == 1
        with watching(address, "/shop/sales/total", end_of(home, 2)) as events:
            sell(home, RECORDS[:4])
            names = [next(events).name for _ in range(2)]
        assert names == ["change", "epoch"]


@pytest.mark.parametrize(
    ("path", "params", "keys"),
    [
        ("/shop/sales/total/rome", {}, {"rome"}),
        ("/shop/sales/total", {"key": '"rome"'}, {"rome"}),
        ("/shop/sales/total", {"prefix": '"ro"'}, {"rome"}),
        ("/shop/sales/total", {"prefix": '"x"'}, set()),
        ("/shop/sales/total", {}, {"rome", "oslo", "nice"}),
    ],
)
def test_one_key_or_those_with_a_prefix_can_be_watched(
    tmp_path: Path, path: str, params: dict[str, str], keys: set[str]
) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS[:2])
    with server({"shop": home}) as address, watching(address, path, **params) as events:
        copy = Copy()
        copy.until(events, 1)
        sell(home, RECORDS)
        copy.until(events, 4)
    expected = rows_of(home, "total")
    assert copy.rows == {own: expected[own] for own in expected if json.loads(own[0]) in keys}


def test_what_expires_is_an_event_of_the_epoch_in_which_it_does(tmp_path: Path) -> None:
    harness = Harness(keep, checkpoint=tmp_path / "c")
    run(harness, 0, [Step("a", 3, START)])
    with server({"kept": tmp_path / "c"}) as address:
        copy = Copy()
        with watching(address, "/kept/keep/by_n") as events:
            copy.until(events, harness.epoch)
            assert list(copy.rows.values()) == ["3"]
            run(harness, 10, [Step("b", 4, START + dt.timedelta(minutes=4))])
            copy.until(events, harness.epoch)
        assert list(copy.rows.values()) == ["4"]
        assert copy.resets == 1


def test_a_rollback_is_changes_back(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS)
    with server({"shop": home}) as address:
        copy = Copy()
        with watching(address, "/shop/sales/items") as events:
            copy.until(events, 4)
            before = dict(copy.rows)
            plan(Repository(home), 1).carry_out()
            copy.until(events, 5)
            assert copy.rows == rows_of(home, "items") != before
            sell(home, RECORDS)
            copy.until(events, 8)
        assert copy.rows == rows_of(home, "items") == before
        assert copy.resets == 1


def replace_by_backup(home: Path, backup: Path, records: list[Sale]) -> None:
    """Put a backup in the place of a checkpoint, where a job goes on with other records."""
    home.rename(home.with_name(f"{home.name}-before"))
    backup.rename(home)
    sell(home, records)


@pytest.mark.parametrize("epochs", [4, 5, 6])
def test_a_watcher_of_a_replaced_checkpoint_begins_again(tmp_path: Path, epochs: int) -> None:
    """Its epochs are as many as before, fewer, or more."""
    home, backup = tmp_path / "sales", tmp_path / "backup"
    sell(home, RECORDS[:3])
    shutil.copytree(home, backup)
    sell(home, RECORDS)
    with server({"shop": home}) as address, watching(address, "/shop/sales/total") as events:
        copy = Copy()
        copy.until(events, 4)
        known = copy.last
        replaced = [*RECORDS[:3], Sale("bonn", "cup", 1), Sale("rome", "tea", 3), *RECORDS[:1]]
        replace_by_backup(home, backup, replaced[:epochs])
        while copy.resets == 1:
            copy.apply(next(events))
        copy.until(events, epochs - 1)
        assert copy.rows == rows_of(home, "total")
        again = Copy()
        with watching(address, "/shop/sales/total", known) as others:
            again.until(others, epochs - 1)
        assert (again.rows, again.resets) == (copy.rows, 1)


def test_it_begins_again_also_after_a_restart_of_the_server(tmp_path: Path) -> None:
    home, backup, copies = tmp_path / "sales", tmp_path / "backup", tmp_path / "copies"
    sell(home, RECORDS[:3])
    shutil.copytree(home, backup)
    sell(home, RECORDS)
    copy = Copy()
    with (
        server({"shop": home}, directory=copies) as address,
        watching(address, "/shop/sales/total") as events,
    ):
        copy.until(events, 4)
    replace_by_backup(home, backup, [*RECORDS[:3], Sale("bonn", "cup", 1), *RECORDS[:1]])
    with (
        server({"shop": home}, directory=copies) as address,
        watching(address, "/shop/sales/total", copy.last) as events,
    ):
        copy.until(events, 4)
    assert copy.rows == rows_of(home, "total")
    assert copy.resets == 2


def test_it_continues_if_the_checkpoint_was_gone_for_a_while(tmp_path: Path) -> None:
    home, away = tmp_path / "sales", tmp_path / "away"
    sell(home, RECORDS[:3])
    with server({"shop": home}) as address, httpx.Client(base_url=address, timeout=30) as client:
        copy = Copy()
        with watching(address, "/shop/sales/total") as events:
            copy.until(events, 2)
            page = client.get("/shop/sales/total?limit=1").json()
            home.rename(away)
            while not client.get("/jobs").json()[0]["has_error"]:
                sleep_s(0.05)
            assert client.get("/shop/sales/total/rome").json()["value"] == 2500
            sleep_s(1.2)
            away.rename(home)
            sell(home, RECORDS)
            copy.until(events, 4)
            assert copy.rows == rows_of(home, "total")
            assert copy.resets == 1
        given = {"cursor": page["value"]["cursor"]}
        assert client.get("/shop/sales/total", params=given).json()["epoch"] == 2


def test_streams_end_with_the_server(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS)
    ended = threading.Event()
    found: list[Event] = []
    with server({"shop": home}) as address:
        started = threading.Event()

        def watch() -> None:
            with watching(address, "/shop/sales/total") as events:
                for event in events:
                    found.append(event)
                    if event.name == "epoch":
                        started.set()
            ended.set()

        threading.Thread(target=watch, daemon=True).start()
        assert started.wait(20)
    assert ended.wait(20)
    assert found[-1].name == "end"
    assert found[-1].data == {"kind": "closing"}


def test_nobody_watches_what_is_not_there(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS)
    with server({"shop": home}) as address:
        for path, status in (("/shop/sales/none", 404), ("/shop/none/total", 404), ("/x/y/z", 404)):
            assert httpx.get(address + path, headers=EVENTS).status_code == status
        for prefix in ("ro", "5", "{}"):
            given = {"prefix": prefix}
            bad = httpx.get(f"{address}/shop/sales/total", headers=EVENTS, params=given)
            assert bad.status_code == 400
