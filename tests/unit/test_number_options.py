"""Numbers that users pass as options: those of NumPy are refused with what to call instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import statekit as sk
from statekit.query import Client
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.top import first_keys
from statekit.sql.run import run_sql
from statekit.testing import Harness, JobHarness
from statekit.testing.checks.check import check
from statekit.testing.faults import Fault, Faults
from statekit.testing.histories import histories


class Sale(NamedTuple):
    shop: str
    cents: int


@sk.process(key="shop")
def sales(sale: Sale, total: sk.ValueState[int], cents: sk.ListState[int]) -> None:
    total.value = (total.value or 0) + sale.cents
    cents.append(sale.cents)


job = sk.Job("shops")
source = job.source("sold", Sale)
source.process(sales)
prices = sk.KVStore("prices", key=str, sort=int, value=int)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("shops") / "checkpoint"
    given = [Sale("rome", cents) for cents in range(4)]
    job.run({"sold": given}, checkpoint=path, epoch_size=2, drain=False)
    return str(path)


def run(**options: Any) -> Any:
    return job.run({"sold": []}, **options)


def replica(checkpoint: str, act: Callable[[sk.Replica], Any]) -> Any:
    with sk.Replica(checkpoint, follow=False) as opened:
        return act(opened)


def view(checkpoint: str, state: str, act: Callable[[sk.StateView[Any, Any]], Any]) -> Any:
    return replica(checkpoint, lambda opened: act(opened.at().state("sales", state)))


OPTIONS: dict[str, Callable[[Any, str], Any]] = {
    "Job key_groups": lambda n, _: sk.Job("other", key_groups=n),
    "parallelism": lambda n, _: run(parallelism=n),
    "epoch_size": lambda n, _: run(epoch_size=n),
    "metrics": lambda n, _: run(metrics=n),
    "from_epoch": lambda n, path: run(from_epoch=n, checkpoint=path),
    "Harness parallelism": lambda n, _: Harness(sales, n),
    "Harness key_groups": lambda n, _: Harness(sales, key_groups=n),
    "JobHarness parallelism": lambda n, _: JobHarness(job, n),
    "Top": lambda n, _: sk.Top(n, by="cents"),
    "scan of a store": lambda n, _: prices.scan(source, key="shop", limit=n),
    "Decimals": lambda n, _: sk.Decimals(n, 0),
    "decimal places": lambda n, _: sk.Decimals(38, n),
    "RocksOptions": lambda n, _: sk.RocksOptions(open_files=n),
    "Retention": lambda n, _: sk.Retention(epochs=n),
    "Recorder limit": lambda n, _: sk.Recorder("/tmp/recorded", limit=n),
    "Recorder shards": lambda n, _: sk.Recorder("/tmp/recorded", shards=[n]),
    "Recorder sample": lambda n, _: sk.Recorder("/tmp/recorded", sample=n),
    "replay_seconds": lambda n, _: sk.BaseOptions(replay_seconds=n),
    "uploaded_per_changed": lambda n, _: sk.BaseOptions(uploaded_per_changed=n),
    "read": lambda n, path: sk.read(path, "sales", "total", n),
    "feed after": lambda n, path: sk.feed(path, "sales", "total", n),
    "feed until": lambda n, path: sk.feed(path, "sales", "total", until=n),
    "Replica views": lambda n, path: sk.Replica(path, views=n),
    "Replica key_groups": lambda n, path: sk.Replica(path, key_groups=(0, n)),
    "at": lambda n, path: replica(path, lambda opened: opened.at(n)),
    "wait_for": lambda n, path: replica(path, lambda opened: opened.wait_for(n)),
    "scan": lambda n, path: view(path, "total", lambda state: state.scan(limit=n)),
    "page": lambda n, path: view(path, "total", lambda state: state.page(limit=n)),
    "page rows": lambda n, path: view(path, "total", lambda state: state.page(rows=n)),
    "get_first": lambda n, path: view(path, "cents", lambda state: state.get_first("rome", n)),
    "get_at_most": lambda n, path: view(path, "cents", lambda state: state.get_at_most("rome", n)),
    "elements": lambda n, path: view(path, "cents", lambda state: state.elements("rome", n)),
    "elements stop": lambda n, path: view(
        path, "cents", lambda state: state.elements("rome", 0, n)
    ),
    "expires": lambda n, path: view(path, "cents", lambda state: state.expires("rome", n)),
    "top": lambda n, path: first_keys(CheckpointReader(path), "sales", limit=n),
    "run_sql": lambda n, path: run_sql(path, "select 1", rows=n),
    "Fault at": lambda n, _: Fault("tear", at=n),
    "Faults rate": lambda n, _: Faults(rate=n),
    "Faults seed": lambda n, _: Faults(seed=n),
    "check examples": lambda n, _: check(sales, examples=n),
    "check seed": lambda n, _: check(sales, seed=n),
    "check seconds": lambda n, _: check(sales, seconds=n),
    "histories epochs": lambda n, _: histories(Sale, epochs=n),
    "histories size": lambda n, _: histories(Sale, size=n),
    "retries": lambda n, _: Client("http://127.0.0.1:1", retries=n),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_number_of_numpy_is_refused_with_what_to_call(option: str, checkpoint: str) -> None:
    with pytest.raises(sk.StatekitError, match=r"call \.item\(\)"):
        OPTIONS[option](np.int64(1), checkpoint)


@pytest.mark.parametrize("option", OPTIONS)
def test_what_is_no_number_is_refused_with_a_typed_error(option: str, checkpoint: str) -> None:
    for given in ("1", True, [1], object(), float("nan"), -1):
        with pytest.raises(sk.StatekitError):
            OPTIONS[option](given, checkpoint)


def test_an_epoch_that_is_asked_of_a_server_is_no_number_of_numpy() -> None:
    place = ("site", "visits", "last")
    with Client("http://127.0.0.1:1", retries=0) as client:
        for read in (
            lambda: client.get(*place, "rome", epoch=np.int64(1)),  # type: ignore[arg-type]
            lambda: client.file_url(*place, epoch=np.int64(1)),
        ):
            with pytest.raises(sk.StateTypeError, match=r"epoch=.*call \.item\(\)"):
                read()


def test_a_size_that_is_no_text_is_refused(tmp_path: Path) -> None:
    for given in (None, 5.5, b"1GB", "1"):
        with pytest.raises(sk.StateTypeError, match=r"Recorder\(limit"):
            sk.Recorder(tmp_path, limit=given)  # type: ignore[arg-type]


def test_a_number_of_keys_that_is_none_is_refused() -> None:
    for given, hint in (
        (np.int64(2), r"call \.item\(\)"),
        ("ada", "a list of keys"),
        (0, "at least"),
    ):
        with pytest.raises(sk.StateTypeError, match=f"keys=.*{hint}"):
            histories(Sale, key="shop", keys=given)  # type: ignore[arg-type]
