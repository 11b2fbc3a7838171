"""The programs in `examples/` run in process and on Spark, with the results of plain Python."""

from __future__ import annotations

import ast
import datetime as dt
import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import statekit as sk
from tests.support.command_line import output_of
from tests.support.places import ROOT

EXAMPLES = ROOT / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "__init__")

Rows = list[Any]


def given(name: str) -> Rows:
    """The records of a file of data, by time if they have one."""
    lines = (EXAMPLES / "data" / f"{name}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    if "at" not in rows[0]:
        return rows
    timed = [row | {"at": dt.datetime.fromisoformat(row["at"])} for row in rows]
    return sorted(timed, key=lambda row: row["at"])


def by(rows: Rows, key: str) -> Iterator[tuple[Any, Rows]]:
    for name, own in groupby(sorted(rows, key=lambda row: row[key]), lambda row: row[key]):
        yield name, list(own)


def divided(rows: Rows, pause: dt.timedelta) -> Rows:
    """Divide rows where no row follows for so long."""
    parts: Rows = []
    for row in rows:
        if parts and row["at"] < parts[-1][-1]["at"] + pause:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


# ------------------------------------------------------------------- what plain Python computes


def fraud() -> Rows:
    alerts = []
    for card, payments in by(given("payments"), "card"):
        last: dict[str, dt.datetime] = {}
        for payment in payments:
            at, country = payment["at"], payment["country"]
            last = {of: then for of, then in last.items() if at - then <= dt.timedelta(hours=1)}
            if country not in last and len(last) >= 2:
                alerts.append({"card": card, "countries": sorted([*last, country]), "at": at})
            last[country] = at
    return alerts


def sessions() -> Rows:
    pause = dt.timedelta(minutes=30)
    return [
        {
            "user": user,
            "start": part[0]["at"],
            "end": part[-1]["at"] + pause,
            "pages": len(part),
            "bytes": sum(visit["bytes"] for visit in part),
            "last": part[-1]["page"],
        }
        for user, visits in by(given("visits"), "user")
        for part in divided(visits, pause)
    ]


def leaderboard() -> Rows:
    """The best of each game at the end."""
    found = []
    for game, scores in by(given("scores"), "game"):
        totals = {of: sum(s["points"] for s in own) for of, own in by(scores, "player")}
        best = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:3]
        found.append({"game": game, "best": [{"player": p, "points": n} for p, n in best]})
    return found


def balances() -> Rows:
    moved = [(row["source"], -row["cents"]) for row in given("transfers")]
    moved += [(row["target"], row["cents"]) for row in given("transfers")]
    rows = [{"key": account, "cents": cents} for account, cents in moved]
    return [{"key": of, "value": sum(row["cents"] for row in own)} for of, own in by(rows, "key")]


def cdc() -> Rows:
    last = [max(own, key=lambda row: row["position"]) for _, own in by(given("changes"), "id")]
    return [
        {name: row[name] for name in ("id", "name", "city")}
        for row in last
        if row["op"] != "delete"
    ]


def rate_limiter() -> Rows:
    decisions = []
    for user, requests in by(given("requests"), "user"):
        tokens, filled = 5, requests[0]["at"]
        for request in requests:
            while tokens < 5 and filled + dt.timedelta(seconds=1) <= request["at"]:
                tokens, filled = tokens + 1, filled + dt.timedelta(seconds=1)
            if tokens == 5:  # a full bucket gains nothing
                filled += (
                    (request["at"] - filled) // dt.timedelta(seconds=1) * dt.timedelta(seconds=1)
                )
            decisions.append({"user": user, "at": request["at"], "is_allowed": tokens > 0})
            tokens = max(0, tokens - 1)
    return decisions


def orders() -> Rows:
    steps: Rows = []
    for order, events in by(given("order_events"), "order"):
        status, until = None, None
        for event in [*events, None]:
            while until is not None and (event is None or until <= event["at"]):
                told = "cancelled" if status == "placed" else "delayed"
                steps.append({"order": order, "status": told, "at": until})
                status = until = None
            if event is None:
                break
            at, kind = event["at"], event["kind"]
            if (status, kind) not in {(None, "placed"), ("placed", "paid"), ("paid", "shipped")}:
                steps.append(
                    {"order": order, "status": f"refused: {kind} after {status}", "at": at}
                )
                continue
            steps.append({"order": order, "status": kind, "at": at})
            status = None if kind == "shipped" else kind
            wait = {"placed": dt.timedelta(minutes=30), "paid": dt.timedelta(days=2)}
            until = None if status is None else at + wait[kind]
    return steps


def absence() -> Rows:
    alerts = []
    for sensor, readings in by(given("readings"), "sensor"):
        for part in divided(readings, dt.timedelta(minutes=10)):
            if part[0] is not readings[0]:
                alerts.append({"sensor": sensor, "status": "back", "at": part[0]["at"]})
            silent = part[-1]["at"] + dt.timedelta(minutes=10)
            alerts.append({"sensor": sensor, "status": "silent", "at": silent})
    return alerts


def features() -> Rows:
    day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    labels = [("ann", 2, False), ("ann", 9, True), ("bob", 2, False), ("bob", 9, False)]
    known = given("balances")
    found = []
    for customer, hour, has_churned in labels:
        at = day + dt.timedelta(hours=hour)
        then = [row for row in known if row["customer"] == customer and row["at"] <= at]
        row = {"key": customer, "at": at, "has_churned": has_churned}
        found.append(row | {"value": then[-1]["cents"], "status": "found"})
    return found


def from_spark() -> Rows:
    return [
        {"user": user, "pages": len(part)}
        for user, visits in by(given("visits"), "user")
        for part in divided(visits, dt.timedelta(minutes=30))
    ]


MODELS: dict[str, Callable[[], Rows]] = {
    "absence": absence,
    "balances": balances,
    "cdc": cdc,
    "features": features,
    "fraud": fraud,
    "from_spark": from_spark,
    "leaderboard": leaderboard,
    "orders": orders,
    "rate_limiter": rate_limiter,
    "sessions": sessions,
}


# ------------------------------------------------------------------------------ what there is


def results(home: Path, name: str) -> Rows:
    """What a program has written below a directory."""
    place = home / "results" / name
    if name in ("cdc", "sessions"):
        return list(DeltaTable(place / "table").to_pyarrow_table().to_pylist())
    if name == "balances":
        return list(sk.read(place / "checkpoint", "accounts", "value").read_all().to_pylist())
    if name == "features":
        from examples.features import training_table

        return list(training_table(place / "checkpoint").to_pylist())
    files = [path for path in place.rglob("*.jsonl") if "checkpoint" not in path.parts]
    rows = [json.loads(line) for path in sorted(files) for line in path.read_text().splitlines()]
    if name == "leaderboard":  # the last row of each game counts
        return list({row["game"]: row for row in rows}.values())
    return [row | {k: dt.datetime.fromisoformat(row[k]) for k in row if k == "at"} for row in rows]


def same(found: Rows, expected: Rows) -> bool:
    """Whether rows are equal in any order, as texts."""
    return texts(found) == texts(expected)


def texts(rows: Rows) -> list[str]:
    return sorted(str(sorted((name, str(of)) for name, of in row.items())) for row in rows)


def python(home: Path, *words: str) -> str:
    return output_of(sys.executable, *words, cwd=home, path=ROOT)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_has_the_results_of_plain_python(tmp_path: Path, name: str) -> None:
    printed = python(tmp_path, str(EXAMPLES / f"{name}.py"))
    assert printed.strip()
    expected = MODELS[name]()
    assert expected
    assert same(results(tmp_path, name), expected)


ON_SPARK = """
import importlib, sys
from pyspark.sql import SparkSession
from statekit.spark import session
spark = session(SparkSession.builder.master("local[2]"))
spark.sparkContext.setLogLevel("ERROR")
for name in sys.argv[1:]:
    module = importlib.import_module(f"examples.{name}")
    module.job.start(
        spark, checkpoint=module.RESULTS / "checkpoint", parallelism=2, drain=True,
        trigger={"availableNow": True},
    ).await_termination()
from examples.from_spark import on_spark
print(on_spark(spark))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_the_programs_have_these_results_on_spark_too(tmp_path: Path) -> None:
    (tmp_path / "drive.py").write_text(ON_SPARK)
    # Without more records the watermark of a stream does not pass the labels of `features`.
    names = [name for name in NAMES if name != "features"]
    printed = python(tmp_path, "drive.py", *names)
    for name in names:
        assert same(results(tmp_path, name), MODELS[name]()), name
    (last,) = re.findall(r"^\[.*\]$", printed, re.MULTILINE)
    # The watermark of Spark passes no timer after the last click.
    until = given("visits")[-1]["at"] - dt.timedelta(minutes=31)
    ended = [
        (user, len(visits))
        for user, visits in by(given("visits"), "user")
        if visits[-1]["at"] <= until  # all rows of the batch come before its timers
    ]
    assert ast.literal_eval(last) == ended


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_check_of_a_program_passes(name: str) -> None:
    python(ROOT, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / f"{name}.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_program_can_be_read_in_a_few_minutes_and_is_listed(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert 30 <= len(text.splitlines()) <= 120
    assert f"[{name}.py]({name}.py)" in (EXAMPLES / "README.md").read_text()
