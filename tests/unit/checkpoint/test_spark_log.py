"""Spark's part as it was after a micro-batch, from files as Spark writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.checkpoint.spark_log import batch_end, batch_times, files_at, new_metadata, query_id
from statekit.errors import CorruptCheckpointError, RestoreError

KAFKA = b'\x00v1\n{"topic":{"0":0}}'

Files = dict[str, bytes]


def entry(position: int) -> str:
    path = f"file:///in/{position}.json"
    return json.dumps({"path": path, "timestamp": 1_700_000_000_000, "batchId": position})


def log(*positions: int) -> bytes:
    return "\n".join(["v1", *map(entry, positions)]).encode()


def offsets(*of_sources: object, version: str = "v1") -> bytes:
    lines = [offset if isinstance(offset, str) else json.dumps(offset) for offset in of_sources]
    if version == "v2":
        lines = [f"{number}:{line}" for number, line in enumerate(lines)]
    return "\n".join([version, '{"batchWatermarkMs":0}', *lines]).encode()


def part(batches: int, interval: int = 10, *, seen: int = 0, version: str = "v1") -> Files:
    """What Spark has after so many batches of one file each; of `seen` more the log knows."""
    files: Files = {"metadata": new_metadata("a")}
    for number in range(batches):
        files[f"offsets/{number}"] = offsets({"logOffset": number}, version=version)
        files[f"commits/{number}"] = b'v1\n{"nextBatchWatermarkMs":0}'
    for position in range(batches + seen):
        if (position + 1) % interval:
            files[f"sources/0/{position}"] = log(position)
        else:
            files[f"sources/0/{position}.compact"] = log(*range(position + 1))
    return files


def at(files: Mapping[str, bytes], batch: int, history: int | None = None) -> Files:
    """The part that results, as bytes."""
    chosen = files_at(files, files.__getitem__, batch, history=history)
    return {path: files[path] if data is None else data for path, data in chosen.items()}


def seen_files(files: Files, interval: int = 10) -> list[str]:
    """The files that Spark takes for read: those of the last compact file, and of all behind it."""
    names = [path.split("/")[-1] for path in files if path.startswith("sources/0/")]
    last = max((int(name.split(".")[0]) for name in names), default=-1)
    compact = [int(name.split(".")[0]) for name in names if name.endswith(".compact")]
    start = max(compact, default=0)
    found: list[str] = []
    for position in range(start, last + 1):
        name = f"{position}.compact" if position in compact else str(position)
        found += files[f"sources/0/{name}"].decode().split("\n")[1:]
    return found


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.integers(0, 15),
    st.integers(2, 12),
    st.sampled_from(["v1", "v2"]),
    st.data(),
)
def test_spark_considers_read_exactly_the_input_up_to_the_batch(
    batches: int, seen: int, interval: int, version: str, data: st.DataObject
) -> None:
    batch = data.draw(st.integers(0, batches - 1))
    files = part(batches, interval, seen=seen, version=version)
    found = at(files, batch)
    assert seen_files(found) == [entry(position) for position in range(batch + 1)]
    numbered = [path for path in found if path.startswith(("offsets/", "commits/"))]
    assert max(int(path.split("/")[1]) for path in numbered) == batch
    assert all(files.get(path, content) == content for path, content in found.items())


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(2, 12), st.data())
def test_a_log_whose_older_files_spark_deleted_is_rebuilt_from_a_later_one(
    batches: int, interval: int, data: st.DataObject
) -> None:
    files = part(batches, interval)
    compact = [int(path.split("/")[2][:-8]) for path in files if path.endswith(".compact")]
    if not compact:
        return
    kept = data.draw(st.sampled_from(compact))
    for position in range(kept):
        files.pop(f"sources/0/{position}", None)
        files.pop(f"sources/0/{position}.compact", None)
    batch = data.draw(st.integers(0, batches - 1))
    assert seen_files(at(files, batch)) == [entry(position) for position in range(batch + 1)]


def test_only_so_much_history_is_kept_as_was_asked_for() -> None:
    found = at(part(20), 12, history=1)
    assert [path for path in found if path.startswith("offsets/")] == ["offsets/11", "offsets/12"]
    assert [path for path in found if path.startswith("commits/")] == ["commits/11", "commits/12"]


def test_a_batch_whose_end_spark_has_not_noted_yet_is_run_again() -> None:
    files = part(5)
    del files["commits/4"]
    found = at(files, 4, history=1)
    assert "offsets/4" in found
    assert "commits/4" not in found


def test_a_source_that_no_batch_has_read_begins_at_its_start() -> None:
    files = part(3)
    files["offsets/2"] = offsets("-", {"topic": {"0": 7}})
    files["sources/1/0"] = KAFKA
    found = at(files, 2)
    assert seen_files(found) == []
    assert found["sources/1/0"] == KAFKA


def test_where_other_sources_began_is_kept_even_if_they_were_not_read() -> None:
    files = part(1)
    files["offsets/0"] = offsets({"logOffset": 0}, "-")
    files["sources/1/0"] = KAFKA
    assert at(files, 0)["sources/1/0"] == KAFKA


def test_hidden_files_of_hadoop_are_not_copied() -> None:
    files = part(2)
    plain = at(files, 1)
    files |= {"sources/0/.0.crc": b"crc", "offsets/.1.crc": b"crc", "offsets/.1.tmp": b""}
    assert at(files, 1) == plain


@pytest.mark.parametrize("missing", ["offsets/3", "offsets/2"])
def test_a_batch_that_spark_has_forgotten_is_refused(missing: str) -> None:
    files = part(5)
    del files[missing]
    with pytest.raises(RestoreError, match=r"no longer has micro-batch"):
        at(files, 3)


def test_state_of_sparks_own_operators_is_refused() -> None:
    with pytest.raises(RestoreError, match="state of its own"):
        at({**part(2), "state/0/0/1.delta": b""}, 1)


def test_versions_that_are_not_known_are_refused() -> None:
    files = part(2)
    files["offsets/1"] = offsets({"logOffset": 1}, version="v3")
    with pytest.raises(RestoreError, match=r"offsets/1 .* version v3"):
        at(files, 1)
    files = part(20)
    del files["sources/0/1"]
    files["sources/0/9.compact"] = b"v2\n"
    with pytest.raises(RestoreError, match=r"9\.compact .* version v2"):
        at(files, 5)


def test_a_log_with_a_gap_is_corrupt() -> None:
    files = part(5)
    del files["sources/0/2"]
    with pytest.raises(CorruptCheckpointError, match=r"sources/0 .* lacks entries"):
        at(files, 4)


@pytest.mark.parametrize("content", [b"v1\nnonsense", b"v1\n{}", b"v1\n[1]", b"\xff\xfe"])
def test_a_log_that_cannot_be_read_is_named(content: bytes) -> None:
    files = part(20)
    del files["sources/0/1"]
    files["sources/0/9.compact"] = content
    with pytest.raises(CorruptCheckpointError, match=r"sources/0/9\.compact"):
        at(files, 5)


@pytest.mark.parametrize("content", [b"v1\nnonsense", b"v1\n{}", b"v1\n[1]", b"v1", b"\xff\xfe"])
def test_notes_of_a_batch_that_cannot_be_read_are_named(content: bytes) -> None:
    for read, name in ((batch_times, "offsets/3"), (batch_end, "commits/3")):
        with pytest.raises(CorruptCheckpointError, match=name):
            read(content, name)
    with pytest.raises(CorruptCheckpointError, match="metadata of Spark's part"):
        query_id(content)


def test_notes_of_a_batch_of_another_version_are_refused() -> None:
    for read, name in ((batch_times, "offsets/3"), (batch_end, "commits/3")):
        with pytest.raises(RestoreError, match=f"{name} .* version v9"):
            read(b"v9\n{}", name)
