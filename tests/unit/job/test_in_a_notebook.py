"""A real kernel of Jupyter shows jobs and runs as HTML."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.places import ROOT
from tests.support.timeouts import PATIENCE_S

kernels = pytest.importorskip("jupyter_client.manager", reason="pip install ipykernel")

CODE = """
import statekit as sk
from tests.support.sinks import ORDERS, spending_job
job = spending_job()
"""


def test_a_kernel_shows_the_plan_of_a_job_and_the_records_of_a_run(tmp_path: Any) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)}
    manager, client = kernels.start_new_kernel(startup_timeout=PATIENCE_S, env=env)
    shown: list[dict[str, str]] = []

    def noted(message: Any) -> None:
        assert message["msg_type"] != "error", message["content"]
        if message["msg_type"] == "execute_result":
            shown.append(message["content"]["data"])

    try:
        for code in (CODE, "job", "job.run({'orders': ORDERS})"):
            client.execute_interactive(code, output_hook=noted, timeout=PATIENCE_S)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    plan, run = shown
    assert "<svg" in plan["text/html"]
    assert plan["text/plain"].startswith("<Job 'shop'")
    assert "sink spent: 12 records, the first 10" in run["text/html"]
