from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from statekit.checkpoint.job_file import JobFile, KeyFieldRecord, OperatorRecord, StateRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.sealed_json import FORMAT, FileRef, checksum_of
from statekit.errors import CorruptCheckpointError, RestoreError

REF = FileRef(path="job.json", size=3, checksum=checksum_of(b"abc"))
TOTAL = StateRecord(
    name="total", kind="value", codec="msgspec", types={"value": "int"}, fingerprint="f"
)
TALLY = OperatorRecord(
    name="tally",
    inputs=("records",),
    key=(KeyFieldRecord(name="key", type="str"),),
    states=(TOTAL,),
)
JOB = JobFile(
    id="0" * 32, name="tally_x", key_groups=8, operators=(TALLY,), dropped={"tally": ("old",)}
)
SHARDS = (
    ShardState(first_group=0, last_group=3),
    ShardState(
        first_group=4,
        last_group=7,
        attempt="a",
        changed=5,
        files=(REF,),
        rows={"total": 2},
        bytes={"total": 20},
    ),
)
MANIFEST = EpochManifest(
    job="tally_x",
    job_file=REF,
    epoch=5,
    previous=3,
    batch=7,
    offsets={"records": 10},
    parallelism=2,
    key_groups=8,
    writer="w",
    processing_time_us=1,
    committed_at_us=1,
    operators={"tally": OperatorEpoch(shards=SHARDS, records_in=4, records_out=4)},
)
BOTH = pytest.mark.parametrize("sealed", [JOB, MANIFEST], ids=["job file", "manifest"])


@BOTH
def test_a_file_reads_back_as_written(sealed: JobFile | EpochManifest) -> None:
    assert type(sealed).from_bytes(sealed.to_bytes(), "file") == sealed


@BOTH
def test_file_is_one_line_of_json_sealed_by_its_last_member(
    sealed: JobFile | EpochManifest,
) -> None:
    data = sealed.to_bytes()
    parsed = json.loads(data)
    assert b"\n" not in data
    assert list(parsed)[-1] == "checksum"
    assert parsed["format"] == FORMAT
    body = data[: data.rindex(b',"checksum"')]
    assert parsed["checksum"] == checksum_of(body)


@BOTH
def test_every_flipped_byte_is_detected(sealed: JobFile | EpochManifest) -> None:
    data = sealed.to_bytes()
    for at in range(len(data)):
        for mask in (0x01, 0x20, 0xFF):
            altered = data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
            with pytest.raises(CorruptCheckpointError, match=r"^file is truncated or altered"):
                type(sealed).from_bytes(altered, "file")


@BOTH
def test_every_truncation_is_detected(sealed: JobFile | EpochManifest) -> None:
    data = sealed.to_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptCheckpointError, match=r"^file is truncated or altered"):
            type(sealed).from_bytes(data[:length], "file")


@BOTH
@pytest.mark.parametrize("more", [b"\n", b" ", b"{}", b"\x00"])
def test_appended_bytes_are_detected(sealed: JobFile | EpochManifest, more: bytes) -> None:
    with pytest.raises(CorruptCheckpointError, match="truncated or altered"):
        type(sealed).from_bytes(sealed.to_bytes() + more, "file")


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    for cls in (JobFile, EpochManifest):
        with pytest.raises(CorruptCheckpointError):
            cls.from_bytes(data, "file")
        with pytest.raises(CorruptCheckpointError):
            cls.from_bytes(seal(data), "file")


@BOTH
def test_newer_format_asks_for_an_upgrade(sealed: JobFile | EpochManifest) -> None:
    newer = with_member(sealed, format=FORMAT + 1, invented_later={"x": 1})
    with pytest.raises(
        RestoreError, match=rf"file has format version {FORMAT + 1}.*upgrade statekit"
    ):
        type(sealed).from_bytes(newer, "file")


def test_files_of_an_unreleased_format_are_refused() -> None:
    first = (
        b'{"format":1,"id":"00000000000000000000000000000000","name":"fleet","key_groups":128,'
        b'"operators":[],"dropped":{},"checksum":"fd42f46ce3d881b1e64cb0151212abe7"}'
    )
    with pytest.raises(RestoreError, match=r"job\.json has format version 1.* new checkpoint"):
        JobFile.from_bytes(first, "job.json")


@BOTH
@pytest.mark.parametrize("wrong", [0, -1, "1", None, True, 1.5])
def test_format_that_never_was_is_corrupt(sealed: JobFile | EpochManifest, wrong: object) -> None:
    with pytest.raises(CorruptCheckpointError):
        type(sealed).from_bytes(with_member(sealed, format=wrong), "file")


@BOTH
def test_member_of_this_format_that_is_unknown_is_corrupt(sealed: JobFile | EpochManifest) -> None:
    with pytest.raises(CorruptCheckpointError, match="surprise"):
        type(sealed).from_bytes(with_member(sealed, surprise=1), "file")


def test_one_kind_of_file_is_not_taken_for_the_other() -> None:
    with pytest.raises(CorruptCheckpointError, match="file is not an epoch's manifest"):
        EpochManifest.from_bytes(JOB.to_bytes(), "file")
    with pytest.raises(CorruptCheckpointError, match="file is not a job description"):
        JobFile.from_bytes(MANIFEST.to_bytes(), "file")


@pytest.mark.parametrize(
    "members",
    [
        {"epoch": -1},
        {"epoch": "5"},
        {"epoch": 5.0},
        {"previous": 5},
        {"previous": -1},
        {"parallelism": 0},
        {"key_groups": 0},
        {"key_groups": 9},
        {"key_groups": 40_000},
        {"offsets": {"records": -1}},
        {"operators": {"tally": {"shards": []}}},
    ],
    ids=repr,
)
def test_manifest_that_cannot_be_is_corrupt_although_sealed(members: dict[str, Any]) -> None:
    with pytest.raises(CorruptCheckpointError, match="file is not an epoch's manifest"):
        EpochManifest.from_bytes(with_member(MANIFEST, **members), "file")


@pytest.mark.parametrize(
    "ranges", [[(0, 3)], [(1, 7)], [(0, 3), (5, 7)], [(0, 4), (4, 7)], [(4, 7), (0, 3)]], ids=repr
)
def test_shards_must_cover_all_key_groups_once_and_in_order(ranges: list[tuple[int, int]]) -> None:
    shards = [{"first_group": first, "last_group": last} for first, last in ranges]
    altered = with_member(MANIFEST, operators={"tally": {"shards": shards}})
    with pytest.raises(CorruptCheckpointError, match="shards"):
        EpochManifest.from_bytes(altered, "file")


@pytest.mark.parametrize(
    "members",
    [
        {"first_group": 4, "last_group": 3},
        {"first_group": -1},
        {"attempt": "a"},
        {"changed": 1},
        {"rows": {"total": -1}},
    ],
    ids=repr,
)
def test_shard_state_that_cannot_be_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ShardState(**{"first_group": 0, "last_group": 7, **members})


def test_operator_cannot_have_two_states_of_one_name() -> None:
    with pytest.raises(ValidationError, match="names a state twice"):
        OperatorRecord(name="tally", inputs=(), key=(), states=(TOTAL, TOTAL))


@pytest.mark.parametrize("checksum", ["", "0" * 31, "G" * 32, "0" * 33])
def test_a_file_reference_needs_a_complete_checksum(checksum: str) -> None:
    with pytest.raises(ValidationError):
        FileRef(path="data", size=1, checksum=checksum)


def test_records_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(MANIFEST, "epoch", 6)  # noqa: B010


@pytest.mark.parametrize(
    ("first", "last", "found"), [(0, 7, [0, 1]), (3, 4, [0, 1]), (0, 3, [0]), (7, 7, [1])]
)
def test_shards_over_a_range_are_those_that_own_any_of_it(
    first: int, last: int, found: list[int]
) -> None:
    assert list(MANIFEST.shards_over("tally", first, last)) == [SHARDS[i] for i in found]


def test_unknown_operator_and_state_are_none() -> None:
    assert list(MANIFEST.shards_over("nope", 0, 7)) == []
    assert JOB.operator("nope") is None
    assert JOB.operator("tally") == TALLY


def test_names_of_manifests_sort_like_their_numbers() -> None:
    numbers = [0, 9, 10, 99, 2**63]
    assert sorted(map(epoch_path, numbers)) == list(map(epoch_path, numbers))


def with_member(sealed: JobFile | EpochManifest, **members: object) -> bytes:
    """The file as a statekit with other ideas would write it, validly sealed."""
    return seal(json.dumps({**json.loads(sealed.model_dump_json()), **members}).encode()[:-1])


def seal(body: bytes) -> bytes:
    return body + f',"checksum":"{checksum_of(body)}"}}'.encode()
