"""Parameters of requests, as pydantic models: their checks and the document follow from these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field

from statekit.query.tables.read import WideInts
from statekit.server.call import RouteCall
from statekit.server.problems import bad_request
from statekit.server.reads import ROWS_MAX, WHOLE, Part
from statekit.server.served_job import LAST, Wanted

WAIT_MAX_S = 60.0
"""Longest wait for an epoch, in seconds."""

SHAPES = "x-shapes"
"""Member of the JSON Schema of a parameter that depends on the state: for each shape of rows that
has the parameter, the kind of JSON that its text is; null for the schema itself.
"""

EpochNumber = Annotated[int | None, Field(ge=0, le=2**62)]
Checksum = Annotated[str | None, Field(pattern="^[0-9a-f]{32}$")]
"""Checksum of a manifest."""

Seconds = Annotated[float, Field(ge=0, le=WAIT_MAX_S, allow_inf_nan=False)]


def of_shapes(**shapes: str | None) -> Any:
    """Return the field of a parameter that only states with some shapes of rows have.

    Parameters:
        shapes: by the name of the shape, or `any`, the kind of JSON that the text is, such as
            "key"; None if the text is of the type of the field.
    """
    return Field(json_schema_extra={SHAPES: dict(shapes)})


JsonText = Annotated[str, of_shapes(any="key")]
"""JSON of a key, or of a part of one."""


class EpochParameters(BaseModel, extra="forbid"):
    """Parameters that choose the epoch of an answer."""

    epoch: EpochNumber = Field(None, description="The answer is of this epoch.")
    manifest: Checksum = Field(
        None,
        description="With epoch: the checksum of its manifest. If the checkpoint was replaced "
        "since, such as by a backup, the answer is 410, and not another epoch of the same number.",
    )
    as_of: AwareDatetime | None = Field(
        None, description="The answer is of the last epoch that was not processed later."
    )
    min_epoch: EpochNumber = Field(
        None, description="The answer is of this epoch or of a later one."
    )
    min_watermark: AwareDatetime | None = Field(
        None, description="The answer is of an epoch whose watermark reached this time."
    )
    wait: Seconds = Field(
        0.0, description="How many seconds to wait for min_epoch and min_watermark."
    )

    def wanted(self, call: RouteCall) -> Wanted:
        """Return the epoch that a request asks for.

        Raises:
            Problem: the parameters do not fit each other.
        """
        if not self.model_fields_set:
            return LAST
        given = (self.epoch, self.as_of, self.min_epoch, self.min_watermark)
        count = 4 - given.count(None)
        if count > 1:
            raise bad_request("give one of epoch, as_of, min_epoch and min_watermark")
        check_manifest(self.epoch, self.manifest)
        if not count:
            return LAST
        epoch, as_of, min_epoch, min_watermark = given
        return Wanted(epoch, self.manifest, as_of, min_epoch, min_watermark, self.wait, call.waiter)


def check_manifest(epoch: int | None, manifest: str | None) -> None:
    """Check that a request with the checksum of a manifest has its epoch.

    Raises:
        Problem: it does not have it.
    """
    if manifest is not None and epoch is None:
        raise bad_request("manifest= is the checksum of an epoch's manifest: give epoch=, too")


Bound = Annotated[str | None, of_shapes(entry="map_key", element="index")]
Limit = Annotated[int | None, Field(ge=1, le=ROWS_MAX)]


class PartParameters(EpochParameters):
    """Parameters of the part of a value, and of the epoch."""

    entry: Annotated[str | None, of_shapes(entry="map_key")] = Field(
        None, description="The one entry with this map key."
    )
    start: Bound = Field(None, description="The first map key or index.")
    end: Bound = Field(None, description="The map key or index after the last one.")
    limit: Annotated[Limit, of_shapes(entry=None, element=None)] = Field(
        None, description="How many keys, entries or elements at most."
    )
    reverse: Annotated[bool, of_shapes(entry=None)] = Field(
        False, description="From the last to the first."
    )
    rows: bool = Field(True, description="Of a stream of events: begin with all present rows.")

    @property
    def part(self) -> Part:
        """The part of a value, or of the keys of a state, that a request asks for."""
        if not self.model_fields_set:
            return WHOLE
        return Part(self.entry, self.start, self.end, self.limit, self.reverse)


class FileParameters(EpochParameters):
    """Parameters of a file with all rows of a state."""

    wide_ints: Literal["decimal", "text"] | None = Field(
        None, description="Of a file: how ints are written if some are 2^63 or more."
    )


def wide_ints_of(text: Literal["decimal", "text"] | None) -> WideInts:
    """Return the column type of ints that a request asks for."""
    return text == "decimal" or (text or False)


class StateParameters(PartParameters, FileParameters):
    """Parameters of a page of keys, of one key as JSON, or of a file."""

    key: Annotated[str | None, of_shapes(any="key")] = Field(
        None, description="One key. An int may be text, too."
    )
    entry: Annotated[str | None, of_shapes()] = None
    start: Annotated[str | None, of_shapes(any="key")] = Field(None, description="The first key.")
    end: Annotated[str | None, of_shapes(any="key")] = Field(
        None, description="The key after the last one."
    )
    limit: Limit = Field(None, description="How many keys, entries or elements at most.")
    reverse: bool = Field(False, description="From the last to the first.")
    cursor: str | None = Field(
        None, description="Of the page before. The next page is of the same epoch."
    )
    prefix: Annotated[str | None, of_shapes(any="prefix")] = Field(
        None,
        description="Of a stream of events: keys that begin with this text, or with these parts.",
    )
