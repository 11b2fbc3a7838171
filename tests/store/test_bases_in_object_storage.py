"""Bases, retention and the commands that look after them, on a real S3 server."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import CorruptCheckpointError
from statekit.job.options import RunOptions
from statekit.maintenance.verify.verify import verify
from statekit.query.rows.reader import CheckpointReader
from statekit.runtime.local import LocalRunner
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies, MemoryCopies
from statekit.working_copy.uploader import uploader
from tests.support.command_line import statekit
from tests.support.counting_job import committed_rows, comparable, copied_rows, entries, tally_job
from tests.support.s3_server import FAULTS, FaultyProxy

GROUPS = 8
EAGER = BaseOptions(replay_seconds=0, uploaded_per_changed=100)
SECRETS = ("AKIASENTINEL", "sentinel/of+the", "sentinel-of-the-token")


def run(url: str, working: Path, epochs: int) -> LocalRunner:
    """Epochs of two shards, each with bases as soon as they are uploaded, and two epochs kept."""
    made = LocalRunner(
        tally_job(GROUPS).plan,
        Repository(url),
        DiskCopies(working, bases=EAGER),
        RunOptions(parallelism=2, retention=sk.Retention(epochs=2)),
    )
    for _ in range(epochs):
        made.epoch({"records": entries(made.coordinator.epoch, 40)})
        assert uploader().drain(60)
    made.coordinator.close()
    return made


def test_a_job_with_bases_and_retention_on_a_faulty_store_has_the_results_of_one_in_memory(
    proxy: FaultyProxy,
    s3: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    proxy.__dict__.update(rate=0.1, kinds=[kind for kind in FAULTS if kind != "hang"])
    made = run(s3, tmp_path / "here", 6)
    in_memory = LocalRunner(tally_job(GROUPS).plan, Repository.in_memory(), MemoryCopies())
    for epoch in range(6):
        in_memory.epoch({"records": entries(epoch, 40)})
    expected = comparable(committed_rows(in_memory.coordinator.repository, GROUPS))
    elsewhere = DiskCopies(tmp_path / "there", bases=EAGER)
    assert comparable(copied_rows(made.coordinator, elsewhere)) == expected
    assert proxy.done
    proxy.rate = 0.0
    repository = Repository(s3)
    assert comparable(committed_rows(repository, GROUPS)) == expected
    assert repository.epochs()[0] > 0
    last = repository.manifest(5)
    shards = last.operators["tally"].shards
    assert all(shard.base is not None for shard in shards)
    assert verify(repository, all_rows=True).is_intact
    shown = capfd.readouterr()
    told = [caplog.text, shown.out, shown.err, repr(shards), repr(made.coordinator.plans("tally"))]
    written = [repository.read(path) for path in repository.tree("")]
    written += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    text = b"\n".join([*written, *(line.encode() for line in told)])
    assert not [secret for secret in SECRETS if secret.encode() in text]


def printed(*words: object) -> str:
    """What a command says. It works, and shows no credentials."""
    done = statekit(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [secret for secret in SECRETS if secret in done.stdout + done.stderr]
    return done.stdout


def test_the_commands_take_urls_of_checkpoints_with_bases(s3: str, tmp_path: Path) -> None:
    run(s3, tmp_path, 4)
    Repository(s3).create("data/tally/lost.changes.arrow", b"of an attempt that lost")
    assert printed("verify", s3, "--all").splitlines()[-1] == "intact"
    planned = json.loads(printed("gc", s3, "--epochs", 1, "--grace", "0", "--dry-run", "--json"))
    assert Repository(s3).exists("data/tally/lost.changes.arrow")
    done = json.loads(printed("gc", s3, "--epochs", 1, "--grace", "0", "--json"))
    assert (planned["deleted"], planned["kept"]) == (done["deleted"], done["kept"])
    assert done["kept"]["epochs"] == 1
    assert not Repository(s3).exists("data/tally/lost.changes.arrow")
    assert "nothing to delete" in printed("gc", s3, "--epochs", 1, "--grace", "0")
    assert json.loads(printed("verify", s3, "--json"))["orphans"] == []
    assert "tally" in printed("inspect", s3)
    assert "tally" in printed("copies", tmp_path)
    assert "2 copies" in printed("copies", tmp_path, "--clean").splitlines()[-1]


class Block(NamedTuple):
    key: str
    size: int


@sk.process(key="key")
def keep_block(block: Block, kept: sk.ValueState[bytes]) -> Iterator[str]:
    """Bytes that cannot be compressed, the same for the same key."""
    kept.update(random_bytes(block))
    yield block.key


def random_bytes(block: Block) -> bytes:
    return hashlib.shake_128(block.key.encode()).digest(block.size)


def test_a_large_table_of_a_base_is_read_completely_or_not_at_all(
    proxy: FaultyProxy, s3: str, tmp_path: Path
) -> None:
    job = sk.Job("blocks", key_groups=GROUPS)
    job.source("blocks", Block).process(keep_block).sink("keys")
    blocks = [Block(f"k{number}", 1_000_000) for number in range(12)]
    one_table = sk.RocksOptions(write_buffer_bytes=64 * 1024 * 1024)
    copies = DiskCopies(tmp_path / "here", one_table, bases=EAGER)
    made = LocalRunner(job.plan, Repository(s3), copies, RunOptions(parallelism=1))
    for records in (blocks, *[[Block("last", 1)]] * 9):  # to read a large base takes long, too
        made.epoch({"blocks": records})
        assert uploader().drain(60)
    sizes = {found.path: found.size for found in Repository(s3).listed("data")}
    (large,) = [path for path, size in sizes.items() if path.endswith("sst") and size > 9_000_000]

    def is_of_it(method: str, path: str) -> bool:
        return method == "GET" and large in path

    proxy.__dict__.update(rate=0.5, kinds=["torn"], wanted=is_of_it)
    while not proxy.done:  # of two pieces, both may come whole at once
        held = CheckpointReader(s3).get("keep_block", "kept", "k1")
        assert bytes.fromhex(held) == random_bytes(blocks[1])
    proxy.__dict__.update(rate=1.0, kinds=["flip"])
    with pytest.raises(CorruptCheckpointError, match=f"{large} is truncated or altered"):
        CheckpointReader(s3).get("keep_block", "kept", "k1")
    (finding,) = verify(Repository(s3)).findings
    assert (finding.path, finding.epochs[-1]) == (large, 9)
