"""A real kernel of Jupyter shows jobs and runs as HTML, and the state of a job as it changes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.notebook_kernel import run_cells
from tests.support.places import ROOT

CODE = """
import statekit as sk
from tests.support.sinks import ORDERS, spending_job
job = spending_job()
"""


def test_a_kernel_shows_the_plan_of_a_job_and_the_records_of_a_run(tmp_path: Path) -> None:
    (_, plan), (_, run) = run_cells([CODE, "job", "job.run({'orders': ORDERS})"], tmp_path)
    assert "<svg" in plan["text/html"]
    assert plan["text/plain"].startswith("<Job 'shop'")
    assert "sink spent: 12 records, the first 10" in run["text/html"]


def test_the_notebook_of_the_examples_shows_the_state_of_a_running_job(tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "examples" / "live_state.ipynb").read_text())
    cells = ["".join(of["source"]) for of in notebook["cells"] if of["cell_type"] == "code"]
    assert all(of.get("outputs", []) == [] for of in notebook["cells"])
    shown = run_cells(cells, tmp_path)
    tables = [data["text/html"] for kind, data in shown if kind == "update_display_data"]
    epochs = [int(match[1]) for match in (re.search(r"epoch (\d+)", of) for of in tables) if match]
    assert len(epochs) == 20
    assert epochs == sorted(set(epochs))
    assert "<svg" in shown[0][1]["text/html"]
    rows = shown[-1][1]["text/plain"]
    assert all(f"'colour': '{colour}'" in rows for colour in ("red", "green", "blue"))
