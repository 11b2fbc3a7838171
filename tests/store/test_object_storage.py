"""Checkpoints on a real S3 server, with what goes wrong in between."""

from __future__ import annotations

import io
import itertools
import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.checkpoint import rollback
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.leases.reader_lease import ReaderLease
from statekit.checkpoint.manifest_pages import PAGE_LIMITS, ManifestPages
from statekit.checkpoint.object_store import FilePage, Objects, StoreOptions
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.store import Store
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    QueryError,
    StateTypeError,
    StorageError,
)
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.query.rows.reader import CheckpointReader
from tests.support.command_line import statekit
from tests.support.counting_job import entries, plain_outputs, plain_state, tally_job
from tests.support.manual_checkpoints import manifest
from tests.support.s3_server import ANSWER_LOST, FAULTS, FaultyProxy
from tests.support.sinks import ORDERS, Spent, spending_job, sums
from tests.support.timeouts import PATIENCE_S

EPOCHS = [entries(epoch, 15) for epoch in range(5)]
RECORDS = [record for epoch in EPOCHS for record in epoch]


# -------------------------------------------------------------------------------------- creation


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_of_many_writers_exactly_one_creates_an_epoch(kind: str, s3: str, tmp_path: Path) -> None:
    url = {"local": str(tmp_path), "s3": s3}.get(kind)
    shared = Repository.in_memory() if url is None else Repository(url)
    writers = [shared if url is None else Repository(url) for _ in range(8)]

    def won(number: int) -> list[int]:
        epochs = []
        for epoch in range(10):
            try:
                writers[number].commit(manifest(epoch, writer=str(number)))
            except FencedError:
                continue
            epochs.append(epoch)
        return epochs

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(won, range(8)))
    assert sorted(epoch for epochs in found for epoch in epochs) == list(range(10))
    for number, epochs in enumerate(found):
        assert all(shared.manifest(epoch).writer == str(number) for epoch in epochs)


@pytest.mark.parametrize("kind", ANSWER_LOST)
def test_a_commit_whose_answer_was_lost_is_ours_if_it_was_and_fenced_if_not(
    proxy: FaultyProxy, s3: str, kind: str
) -> None:
    repository = Repository(s3)
    proxy.kinds, lost = [kind], [True, False] * 2
    proxy.wanted = lambda method, path: method == "PUT" and lost.pop(0)
    proxy.rate = 1.0
    repository.commit(manifest(0, writer="first"))  # tried twice, and found to be there
    with pytest.raises(FencedError, match="another run"):
        repository.commit(manifest(0, writer="second"))
    assert not lost
    assert [fault for fault, *_ in proxy.done] == [kind] * 2
    assert repository.manifest(0).writer == "first"


# ------------------------------------------------------------------------------------- transfers


@pytest.mark.parametrize("seed", range(2))
def test_a_file_arrives_intact_whatever_fails_on_the_way(
    proxy: FaultyProxy, s3: str, seed: int
) -> None:
    content = random.Random(seed).randbytes(20_000_000)  # several parts up, several pieces down
    repository = Repository(s3)
    proxy.__dict__.update(rate=0.3, kinds=[kind for kind in FAULTS if kind != "hang"])
    ref = repository.put_file("data/tally/large", io.BytesIO(content))
    with repository.open_verified(ref) as file:
        assert file.read() == content
    assert proxy.done


def test_of_a_large_file_that_was_torn_only_the_piece_is_read_again(
    proxy: FaultyProxy, s3: str
) -> None:
    content = random.Random(0).randbytes(20_000_000)
    repository = Repository(s3)
    ref = repository.put_file("data/tally/large", io.BytesIO(content))
    proxy.requests.clear()
    tears = [True, False, True]
    proxy.wanted = lambda method, path: method == "GET" and bool(tears) and tears.pop(0)
    proxy.__dict__.update(rate=1.0, kinds=["torn"])
    with repository.open_verified(ref) as file:
        assert file.read() == content
    assert len(proxy.done) == 2
    assert len(proxy.requests) == 3 + 2


@pytest.mark.parametrize("size", [0, 1, 8 * 1024 * 1024, 8 * 1024 * 1024 + 1])
def test_files_of_any_size_read_as_they_were_written(s3: str, size: int) -> None:
    repository, content = Repository(s3), random.Random(size).randbytes(size)
    ref = repository.put_file("data/tally/f", io.BytesIO(content))
    with repository.open_verified(ref) as file:
        assert file.read() == content


@pytest.mark.parametrize("size", [1000, 9_000_000])
@pytest.mark.parametrize("change", [-1, 1, -900])
def test_a_file_of_another_length_is_corrupt_and_named(s3: str, size: int, change: int) -> None:
    repository, content = Repository(s3), random.Random(size).randbytes(size)
    ref = repository.put_file("data/tally/f", io.BytesIO(content))
    repository._objects.put(ref.path, (content + b"x")[: size + change])
    with pytest.raises(CorruptCheckpointError, match=r"data/tally/f is truncated or altered"):
        repository.open_verified(ref)


def test_bytes_that_changed_on_the_way_are_never_taken_for_the_state(
    proxy: FaultyProxy, s3: str
) -> None:
    job, url = tally_job(), s3
    job.run({"records": RECORDS}, checkpoint=url, parallelism=2)
    expected = CheckpointReader(url).get("tally", "total", "k1")
    named: list[str] = []
    for seed in range(12):
        proxy._random.seed(seed)
        proxy.__dict__.update(
            rate=0.2,
            kinds=["flip"],
            wanted=lambda method, path: method == "GET" and "list-type" not in path,
        )
        try:
            assert CheckpointReader(url).get("tally", "total", "k1") == expected
        except CorruptCheckpointError as error:
            named.append(str(error))
    assert named
    assert all(url in told for told in named)


# ------------------------------------------------------------------------------------------ time


@pytest.mark.parametrize("kind", ["503", "hang", "reset before", "torn"])
def test_a_store_that_does_not_recover_is_an_error_after_a_bounded_time(
    proxy: FaultyProxy, s3: str, kind: str
) -> None:
    repository = Repository(s3)
    repository.commit(manifest(0))
    impatient = StoreOptions(retry_seconds=1.0, timeout_seconds=0.3, pause_seconds=0.01)
    repository = Repository(s3, options=impatient)
    proxy.__dict__.update(rate=1.0, kinds=[kind])
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot read .* tries in .* then start again") as told:
        repository.read(epoch_path(0))
    assert time.monotonic() - began < 10  # 1.3 s, on a machine with nothing else to do
    assert told.value.__cause__ is None
    assert ("SlowDown" in str(told.value)) == (kind == "503")


REQUESTS: dict[str, Callable[[Repository], object]] = {
    "read": lambda store: store.read("data/tally/f"),
    "look": lambda store: store.exists("data/tally/f"),
    "write": lambda store: store.put_file("data/tally/g", io.BytesIO(b"x" * 1000)),
    "create": lambda store: store.create("note", b"x"),
    "list": lambda store: list(store.tree("data")),
    "names": lambda store: list(store.names("data/tally")),
    "remove": lambda store: store.collect(["data/tally/f", "data/tally/h"]),
    "remove one": lambda store: store.collect(["data/tally/f"]),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_each_try_is_one_request_so_that_its_time_is_bounded(
    proxy: FaultyProxy, s3: str, name: str
) -> None:
    Repository(s3).put_file("data/tally/f", io.BytesIO(b"x"))
    for seconds, kind in ((0.0, "503"), (0.5, "503"), (0.0, "hang")):
        proxy.requests.clear()
        proxy.__dict__.update(rate=1.0, kinds=[kind])
        options = StoreOptions(retry_seconds=seconds, timeout_seconds=0.5, pause_seconds=0.1)
        with pytest.raises(StorageError) as told:
            REQUESTS[name](Repository(s3, options=options))
        tries = re.search(r"\((\d+) tries", str(told.value))
        assert len(proxy.requests) == (int(tries[1]) if tries else 1)
        assert bool(tries) == bool(seconds)


def test_the_upload_of_a_large_file_that_never_succeeds_is_an_error_after_a_bounded_time(
    proxy: FaultyProxy, s3: str
) -> None:
    impatient = StoreOptions(retry_seconds=1.0, timeout_seconds=1.0, pause_seconds=0.01)
    repository = Repository(s3, options=impatient)
    proxy.__dict__.update(rate=1.0, kinds=["503"])
    proxy.wanted = lambda method, path: "partNumber=2" in path
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot write .*data/tally/large.* then start again"):
        repository.put_file("data/tally/large", io.BytesIO(bytes(12_000_000)))
    assert time.monotonic() - began < 30  # 3 s, on a machine with nothing else to do
    assert proxy.done
    proxy.rate = 0.0
    assert list(repository.tree("data")) == []


def test_a_lasting_failure_is_an_error_at_once(proxy: FaultyProxy, s3: str) -> None:
    patient = StoreOptions(retry_seconds=60)
    with pytest.raises(StorageError, match=r"cannot list .*NoSuchBucket"):
        Repository("s3://no-such-bucket/x", options=patient).latest_epoch()
    with pytest.raises(StorageError, match=r"cannot write .*NoSuchBucket"):
        Repository("s3://no-such-bucket/x", options=patient).commit(manifest(0))
    proxy.__dict__.update(rate=1.0, kinds=["403"])
    with pytest.raises(StorageError, match="cannot list"):
        Repository(s3, options=patient).latest_epoch()


def test_how_long_a_store_may_take_is_set_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STATEKIT_STORE_RETRY_SECONDS", "7")
    assert StoreOptions.of(os.environ).retry_seconds == 7
    monkeypatch.setenv("STATEKIT_STORE_TIMEOUT_SECONDS", "soon")
    with pytest.raises(StateTypeError, match="STATEKIT_STORE_TIMEOUT_SECONDS='soon'"):
        Repository.in_memory()


# ------------------------------------------------------------------------------------------ jobs


def run_everything(url: str, tmp_path: Path) -> None:
    """Epochs, another parallelism, a savepoint, a rollback, and going on from both."""
    job = tally_job()
    first, more = EPOCHS[0] + EPOCHS[1], RECORDS
    done = job.run({"records": first}, checkpoint=url, parallelism=2, epoch_size=15)
    outputs = list(done.outputs["outputs"])
    write_savepoint(Repository(url), "early")
    job.run({"records": more}, checkpoint=url, parallelism=3, epoch_size=15)
    rollback.plan(Repository(url), 1).carry_out()
    done = job.run({"records": more}, checkpoint=url, epoch_size=15, backend="rocksdb")
    outputs += done.outputs["outputs"]
    assert sorted(outputs) == sorted(plain_outputs(RECORDS))
    reader = CheckpointReader(url)
    for key, states in plain_state(RECORDS).items():
        for state, value in states.items():
            assert (reader.get("tally", state, key) or type(value)()) == value
    again = job.run(
        {"records": more}, checkpoint=f"{url}-2", from_savepoint=f"{url}/savepoints/early"
    )
    assert sorted(again.outputs["outputs"]) == sorted(plain_outputs(RECORDS)[len(first) :])


@pytest.mark.parametrize("seed", range(2))
def test_a_job_on_a_faulty_store_has_the_results_of_one_on_a_good_store(
    proxy: FaultyProxy, s3: str, seed: int, tmp_path: Path
) -> None:
    proxy._random.seed(seed)
    proxy.__dict__.update(rate=0.1, kinds=[kind for kind in FAULTS if kind != "hang" or not seed])
    run_everything(s3, tmp_path)
    assert len(proxy.done) > 5


def test_the_command_line_takes_urls(s3: str) -> None:
    tally_job().run({"records": RECORDS}, checkpoint=s3, epoch_size=15)
    for words in (
        ("inspect", s3),
        ("savepoint", s3, "kept"),
        ("rollback", s3, "--to", "2"),
        ("diff", s3, f"{s3}/savepoints/kept"),
        ("inspect", f"{s3}/savepoints/kept"),
    ):
        done = statekit(*words)
        wanted = 3 if words[0] == "diff" else 0  # they differ
        assert done.returncode == wanted, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert not [secret for secret in SECRETS if secret in done.stdout + done.stderr]
    assert Repository(s3).latest_epoch() == 5


def test_an_epoch_costs_a_few_requests_however_many_there_were(
    proxy: FaultyProxy, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ManifestPages, "limits", PAGE_LIMITS)
    counts = []

    def counted(records: object, epoch: int) -> None:
        counts.append(len(proxy.requests))

    tally_job().run(
        {"records": [entry for epoch in range(6) for entry in entries(epoch, 60, keys=60)]},
        checkpoint=s3,
        parallelism=4,
        epoch_size=60,
        outputs={"outputs": counted},
        retention=None,  # collecting has requests of its own
    )
    each = {later - before for before, later in itertools.pairwise(counts[1:])}
    # 4 change files, the manifest, what was begun and its removal; whether another was faster,
    # twice whether the epoch before is still there, and whether others have gone on from this one.
    assert each == {4 + 1 + 2 + 1 + 2 + 1}


# --------------------------------------------------------------------------------------- listing


class Counted:
    """Counts pages that are listed."""

    def __init__(self, inner: Objects) -> None:
        self._inner = inner
        self.pages = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def page(self, under: str, behind: str | None = None) -> FilePage:
        self.pages += 1
        return self._inner.page(under, behind)


@pytest.mark.parametrize("gone", [0, 7, 15_000])
def test_the_last_of_many_epochs_is_found_without_listing_all(gone: int) -> None:
    repository = Repository.in_memory()
    for epoch in range(gone, 30_000):
        repository._objects.put(epoch_path(epoch), b"")
    counted: list[Counted] = []

    def between(objects: Objects) -> Objects:
        counted.append(Counted(objects))
        return counted[0]  # type: ignore[return-value]

    assert repository.through(between).latest_epoch() == 29_999
    assert counted[0].pages <= 16


def test_more_files_than_one_answer_lists_are_listed_and_removed(
    proxy: FaultyProxy, s3: str
) -> None:
    patient = StoreOptions(timeout_seconds=PATIENCE_S)  # each request is counted, and made once
    repository = Repository(s3, options=patient)
    paths = [f"savepoints/s/{number}" for number in range(1100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda path: repository._objects.put(path, b""), paths))
    assert sorted(repository.tree("savepoints")) == sorted(paths)
    assert sorted(repository.names("savepoints/s")) == sorted(paths)
    proxy.requests.clear()
    repository.remove(paths)
    assert {method for method, _ in proxy.requests} == {"POST"}
    assert len(proxy.requests) == 2
    assert not list(repository.tree("savepoints"))
    repository.remove(paths[:3])  # they may be gone already


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x", "https://example.com/x", "ftp://server/x", "gcs://bucket/x"]
)
def test_a_store_that_cannot_keep_a_checkpoint_is_refused_before_it_is_asked(url: str) -> None:
    with pytest.raises(StateTypeError, match=r"cannot be kept .* Give a local path, s3://bucket"):
        Repository(url)


def test_an_endpoint_without_tls_is_an_error_at_once_that_says_how_to_allow_it(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"builder error \(of a http.* AWS_ALLOW_HTTP=true"):
        Repository(s3, options=StoreOptions(retry_seconds=600)).latest_epoch()
    assert time.monotonic() - began < 60


# ----------------------------------------------------------------------------------- credentials

SECRETS = ("AKIASENTINEL", "sentinel/of+the", "sentinel-of-the-token")


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIASENTINEL:sentinel/of+the@bucket/p",
        "s3://AKIASENTINEL@bucket/p",
        "s3://bucket/p?AWS_SECRET_ACCESS_KEY=sentinel-of-the-token",
        "az://container/p?sig=sentinel-of-the-token",
        "abfss://c:sentinel-of-the-token@account.dfs.core.windows.net/p",
        "https://AKIASENTINEL:sentinel-of-the-token@account.blob.core.windows.net/c",
    ],
)
def test_a_url_with_credentials_in_it_is_refused_without_showing_them(url: str) -> None:
    with pytest.raises(StateTypeError, match="credentials in the environment") as told:
        Repository(url)
    assert not [secret for secret in SECRETS if secret in str(told.value)]


def test_credentials_are_in_nothing_that_is_written_logged_or_raised(
    proxy: FaultyProxy,
    s3: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    proxy.__dict__.update(rate=0.1, kinds=["503", "reset after", "torn"])
    run_everything(s3, tmp_path)
    proxy.rate = 0.0
    repository = Repository(s3)
    written = [repository.read(path) for path in repository.tree("")]
    assert len(written) > 20
    told = []
    for kind in ("403", "503", "torn", "hang", "reset before"):
        proxy.__dict__.update(rate=1.0, kinds=[kind])
        with pytest.raises(StorageError) as failed:
            Repository(s3, options=StoreOptions(0.5, 0.3, 1, 0.01)).read("job.json")
        told.append("".join(map(str, failed.getrepr(showlocals=False).reprtraceback.reprentries)))
        told.append(str(failed.value))
        assert failed.value.__cause__ is None
    shown = capfd.readouterr()
    told += [caplog.text, shown.out, shown.err, repr(repository), repr(repository.__dict__)]
    text = b"\n".join([*written, *(line.encode() for line in told)])
    assert not [secret for secret in SECRETS if secret.encode() in text]


# --------------------------------------------------------------------------------------- leases


def test_a_reader_keeps_its_epochs_although_answers_are_lost(proxy: FaultyProxy, s3: str) -> None:
    tally_job().run({"records": RECORDS}, checkpoint=s3, epoch_size=7)
    repository = Repository(s3)
    collector = Collector(repository, sk.Retention(epochs=1))
    proxy.__dict__.update(rate=0.3, kinds=[kind for kind in FAULTS if kind != "hang"])
    lease = ReaderLease.take(repository, "index", 3)
    for epoch in (4, 5):
        lease.commit(epoch)
        collector.collect(sweep=False)
        assert repository.epochs()[0] == epoch
    with pytest.raises(QueryError, match="was collected"):
        ReaderLease.take(repository, "late", 4)
    proxy.rate = 0.0
    lease.delete()
    assert not list(repository.names("readers"))
    assert proxy.done


def test_a_lease_in_an_object_store_is_refused_to_another_process(s3: str) -> None:
    tally_job().run({"records": RECORDS}, checkpoint=s3, epoch_size=15)
    lease = ReaderLease.take(Repository(s3), "index", 3, ttl="7 minutes")
    code = (
        "import sys\n"
        "from statekit.checkpoint.leases.reader_lease import ReaderLease\n"
        "from statekit.checkpoint.repository import Repository\n"
        "ReaderLease.take(Repository(sys.argv[1]), 'index', 4, token=sys.argv[2] or None)\n"
    )
    refused, taken = (
        subprocess.run(
            [sys.executable, "-c", code, s3, token], capture_output=True, text=True, check=False
        )
        for token in ("", lease.token)
    )
    assert "FencedError: reader 'index'" in refused.stderr
    assert f"is process {os.getpid()} on" in refused.stderr
    assert (taken.returncode, taken.stderr) == (0, "")
    with pytest.raises(FencedError, match="was taken over"):
        lease.commit(4)


# ------------------------------------------------------------------------------------------ sinks


def _spent(url: str) -> list[Spent]:
    """The rows of the files of a sink, sorted."""
    store = Store(url)
    files = [io.BytesIO(store.read(path)) for path in store.names("")]
    return sorted(Spent(**row) for file in files for row in pq.read_table(file).to_pylist())


def test_parquet_files_in_an_object_store_have_each_epoch_once(s3: str) -> None:
    job = spending_job(sk.sinks.parquet(f"{s3}/out"))
    job.run({"orders": ORDERS}, checkpoint=f"{s3}/c", epoch_size=5, drain=False)
    assert _spent(f"{s3}/out") == sums(ORDERS)
    job.run({"orders": ORDERS}, checkpoint=f"{s3}/c", epoch_size=5, from_epoch=0)
    assert _spent(f"{s3}/out") == sums(ORDERS)
    assert list(Store(f"{s3}/out").names("_statekit")) == []


def test_a_sink_writes_over_a_bad_network(s3: str, proxy: FaultyProxy) -> None:
    """Also moves whose answer is lost are done once."""
    proxy.__dict__.update(rate=0.3, kinds=[kind for kind in FAULTS if kind != "hang"])
    job = spending_job(sk.sinks.parquet(f"{s3}/out"))
    job.run({"orders": ORDERS}, checkpoint=None, epoch_size=1)
    assert proxy.done
    proxy.rate = 0.0
    assert _spent(f"{s3}/out") == sums(ORDERS)
