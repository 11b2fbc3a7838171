"""JSON files with a format version and their own checksum.

A sealed file is one line of JSON whose last member is the XXH3-128 of all bytes before it:

    {"format":3,…,"checksum":"0123456789abcdef0123456789abcdef"}
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Self

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from statekit.errors import CorruptCheckpointError, RestoreError
from statekit.names import StoredPath

FORMAT = 3
"""The format version of all sealed files except manifests with pages (`manifest_pages`)."""

_SEAL = ',"checksum":"'

_FAULTS_LENGTH = 500

_FAULTS_MAX = 20

VALUES_MAX = 1 << 24
"""The maximum number of values, more than in a manifest of 10,000 shards. A value of two bytes can
take 100 in memory.
"""

_SEAL_BYTES = len(_SEAL) + 32 + len('"}')

COUNT_MAX = 2**53
"""The maximum of all counts. Readers in other languages represent such numbers exactly."""

Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]

Group = Annotated[int, Field(ge=0, le=32767)]
"""A key group."""

Size = Annotated[int, Field(ge=0, le=2**46)]
"""Bytes of a file. The bound is 64 TiB, which no store accepts."""


def checksum_of(data: bytes) -> str:
    """Return the XXH3-128 of `data` as 32 hex digits.

    >>> checksum_of(b"")
    '99aa06d3014798d86001c324468d497f'
    """
    return xxhash.xxh3_128_hexdigest(data)


def faults_of(error: Exception, at: str = "") -> str:
    """Return the faults of a record in one line, with their places.

    Parameters:
        at: the place of the record itself.
    """
    if not isinstance(error, ValidationError):
        return str(error)[:_FAULTS_LENGTH]
    if (count := error.error_count()) > _FAULTS_MAX:
        return f"{count:,} values of it are not what they are to be"
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    places = (".".join(filter(None, (at, *map(str, fault["loc"])))) for fault in errors)
    texts = [f"{place}: {fault['msg']}" for place, fault in zip(places, errors, strict=True)]
    return "; ".join(texts)[:_FAULTS_LENGTH]


def parse_json(text: str | bytes) -> Any:
    """Parse stored JSON.

    Raises:
        ValueError: it is not JSON, it is nested too deep, or it has too many values.
    """
    marks = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
    if sum(map(text.count, marks)) > VALUES_MAX:  # type: ignore[arg-type]
        raise ValueError(f"it has more than {VALUES_MAX:,} values")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


class Record(BaseModel):
    """Stored data that never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileRef(Record):
    """A reference to a file that is written once and never changed.

    Parameters:
        path: below the checkpoint.
        size: in bytes.
        checksum: XXH3-128 of its content, in hex.
        rows: mutations in a change file; 0 for other kinds.
        local: whether it has operator state, and no keyed state.
    """

    path: StoredPath
    size: Size
    checksum: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    rows: Count = 0
    local: bool = False


class Sealed(Record):
    """A record that is stored as a file with format version and checksum."""

    title: ClassVar[str]
    formats_read: ClassVar[tuple[int, ...]] = (FORMAT,)

    format: Annotated[int, Field(ge=1)] = FORMAT

    def to_bytes(self) -> bytes:
        """Return the file's content: canonical JSON with its checksum."""
        body = self.model_dump_json().encode()[:-1]
        return body + f'{_SEAL}{checksum_of(body)}"}}'.encode()

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Self:
        """Verify and parse the content of a file.

        Raises:
            CorruptCheckpointError: truncated, altered, or not such a file.
            RestoreError: written by a newer version of statekit.
        """
        body, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
        if seal != f'{_SEAL}{checksum_of(body)}"}}'.encode():
            raise CorruptCheckpointError(
                f"{path} is truncated or altered: its checksum does not match its content. "
                "Restore the file from a backup, or start from an earlier epoch or a savepoint"
            )
        try:
            version = parse_json(body + b"}").get("format")
            if type(version) is int and version > 0 and version not in cls.formats_read:
                advice = (
                    "upgrade statekit"
                    if version > max(cls.formats_read)
                    else "no released statekit reads it: start with a new checkpoint"
                )
                raise RestoreError(
                    f"{path} has format version {version}, and this statekit reads "
                    f"{max(cls.formats_read)}: {advice}"
                )
            return cls.model_validate_json(body + b"}")
        except (ValueError, ValidationError, AttributeError) as error:
            raise CorruptCheckpointError(
                f"{path} is not {cls.title}: {faults_of(error)}. Restore the file from a backup, "
                "or start from an earlier epoch or a savepoint"
            ) from error
