"""Runs a flow of Bytewax in one worker, with its recovery store."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from bytewax._bytewax import cli_main
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir

from tests.bench.peers.jobs.handshake import bytes_in, ready

__all__ = ["run_with_recovery"]


def run_with_recovery(flow: Dataflow, home: Path, every_s: str) -> int:
    """Run a flow to its end, and return the bytes of its recovery store.

    Parameters:
        home: an empty directory.
        every_s: the seconds between snapshots.
    """
    recovery = home / "recovery"
    recovery.mkdir()
    init_db_dir(recovery, 1)
    ready()
    cli_main(
        flow,
        workers_per_process=1,
        epoch_interval=timedelta(seconds=float(every_s)),
        recovery_config=RecoveryConfig(recovery, timedelta(0)),
    )
    return bytes_in(recovery)
