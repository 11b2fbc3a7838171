"""Jobs over files: bad lines are collected, and a killed job reads each record once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from tests.support.effort import SOAK
from tests.support.sinks import Order, spending
from tests.support.timeouts import PATIENCE_S

PROGRAM = """
import sys
from pathlib import Path
import statekit as sk
from tests.support.sinks import Order, spending

place = Path(sys.argv[1])
job = sk.Job("shop")
source = sk.sources.json_lines(place / "in")
orders = job.source("orders", Order, source, on_error="collect")
orders.process(spending).sink("spent", sk.sinks.json_lines(place / "out"))
orders.errors.sink("bad", sk.sinks.json_lines(place / "bad"))
job.run(checkpoint=place / "checkpoint", epoch_size=int(sys.argv[2]))
"""


def written(place: Path) -> list[Any]:
    files = sorted(place.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_bad_lines_are_collected_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = '{"customer":"ada","cents":5}\nnonsense\n{"customer":"bob","cents":"x"}\n'
    (tmp_path / "in" / "a.jsonl").write_text(text + '{"customer":"ada","cents":2}\n')
    job = sk.Job("shop")
    source = sk.sources.json_lines(tmp_path / "in")
    orders = job.source("orders", Order, source, on_error="collect")
    orders.process(spending).sink("spent")
    orders.errors.sink("bad")
    run = job.run(checkpoint=tmp_path / "checkpoint", epoch_size=2)
    bad: list[Any] = run["bad"]
    assert [of.value for of in bad] == [b"nonsense", b'{"customer":"bob","cents":"x"}']
    assert [json.loads(of.offset) for of in bad] == [
        {"byte": text.index("nonsense"), "file": "a.jsonl"},
        {"byte": text.index('{"customer":"bob"'), "file": "a.jsonl"},
    ]
    assert len(run["spent"]) == 2


@pytest.mark.slow
def test_a_job_that_is_killed_again_and_again_reads_each_line_once(tmp_path: Path) -> None:
    source, epochs = tmp_path / "in", tmp_path / "checkpoint" / "epochs"
    source.mkdir()
    rng = random.Random(3)
    totals: dict[str, int] = {}
    bad = 0
    for number in range(40):
        rows = []
        for line in range(rng.randrange(40)):
            customer, cents = rng.choice("abcdef"), rng.randrange(100)
            if rng.random() < 0.01:
                rows.append(f"bad {number} {line}")
                bad += 1
                continue
            totals[customer] = totals.get(customer, 0) + cents
            rows.append(json.dumps({"customer": customer, "cents": cents}))
        (source / f"{number:03d}.jsonl").write_text("".join(f"{row}\n" for row in rows))
    kills = 0
    while True:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), "17"]
        process = subprocess.Popen(command)
        wanted = len(list(epochs.glob("*.json"))) + rng.randrange(1, 12)
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < deadline:
            if kills < (100 if SOAK else 5) and len(list(epochs.glob("*.json"))) >= wanted:
                process.kill()
                kills += 1
            time.sleep(0.01)
        if process.wait(1) == 0:
            break
        assert process.returncode == -9, "no error but the kill"
    assert kills >= 2
    last = {row["customer"]: row for row in written(tmp_path / "out")}
    assert {name: row["cents"] for name, row in last.items()} == totals
    found = [row["value"] for row in written(tmp_path / "bad")]
    assert len(found) == len(set(found)) == bad
