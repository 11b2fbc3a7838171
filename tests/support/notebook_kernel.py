"""A real kernel of Jupyter, which runs the cells of a notebook."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import ROOT
from tests.support.timeouts import PATIENCE_S


def run_cells(cells: Sequence[str], home: Path) -> list[tuple[str, dict[str, str]]]:
    """Run cells in a new kernel, and return what they show: the type of each message, and its data.

    Parameters:
        home: the working directory.

    Raises:
        AssertionError: a cell has failed.
    """
    kernels = pytest.importorskip("jupyter_client.manager", reason="pip install ipykernel")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(home / ".ipython")}
    manager, client = kernels.start_new_kernel(startup_timeout=PATIENCE_S, env=env, cwd=str(home))
    shown: list[tuple[str, dict[str, str]]] = []

    def noted(message: Any) -> None:
        kind, content = message["msg_type"], message["content"]
        assert kind != "error", content
        if kind in ("execute_result", "display_data", "update_display_data"):
            shown.append((kind, content["data"]))

    try:
        for cell in cells:
            client.execute_interactive(cell, output_hook=noted, timeout=PATIENCE_S)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return shown
