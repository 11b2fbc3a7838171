"""The pages about runs without Spark and about sinks are true: their examples run."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import statekit as sk
from statekit.checkpoint.repository import Repository
from tests.support.places import DOCS


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / "guide" / page).read_text(), re.DOTALL)


def run(example: str, **names: Any) -> dict[str, Any]:
    given = {"sk": sk, "Iterator": Iterator, "NamedTuple": NamedTuple, "json": json, **names}
    given["__name__"] = "page"
    exec(compile(example, "page", "exec", dont_inherit=True), given)
    return given


def orders_in(home: Path, name: str, *cents: int) -> None:
    home.mkdir(exist_ok=True)
    lines = [json.dumps({"customer": "ada", "cents": each}) + "\n" for each in cents]
    (home / name).write_text("".join(lines))


def written(home: Path) -> list[int]:
    files = sorted(home.glob("*.jsonl"))
    return [json.loads(line)["cents"] for file in files for line in file.read_text().splitlines()]


def test_the_job_of_the_page_follows_a_directory(tmp_path: Path) -> None:
    follow, _ = examples("running.md")
    orders_in(tmp_path / "orders", "a.jsonl", 500)
    stop = threading.Event()

    def feed() -> None:
        pause = threading.Event()
        while not written(tmp_path / "spent"):
            pause.wait(0.01)
        orders_in(tmp_path / "orders", "b.jsonl", 200)
        while len(written(tmp_path / "spent")) < 2:
            pause.wait(0.01)
        stop.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    run(follow, place=tmp_path, stop=stop)
    feeder.join()
    assert written(tmp_path / "spent") == [500, 700]


@pytest.mark.slow
def test_the_job_of_the_page_moves_to_spark_and_back(tmp_path: Path, spark: SparkSession) -> None:
    follow, moved = examples("running.md")
    orders_in(tmp_path / "orders", "a.jsonl", 500, 200)
    declared = follow[: follow.index("job.run(")]
    run(declared + moved, place=tmp_path, spark=spark)
    manifest = Repository(tmp_path / "moved").manifest(0)
    assert manifest.offsets.keys() == {"orders"}


def test_the_examples_about_sinks_run(tmp_path: Path) -> None:
    parquet, own = examples("sinks.md")
    names = run(parquet, place=tmp_path)
    (file,) = (tmp_path / "spent").glob("*.parquet")
    found = pq.read_table(file).to_pylist()
    assert sorted(row["cents"] for row in found) == [300, 500, 700]
    lines = run(own)["Lines"](tmp_path / "lines.json")
    names["job"].run({"orders": names["orders"]}, outputs={"spent": lines})
    rows = json.loads((tmp_path / "lines.json").read_text())
    assert rows == {"0": found}
