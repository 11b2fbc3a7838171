"""Parameters of requests, as pydantic models: their checks and the document follow from these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from statekit.query.tables.read import WideInts
from statekit.server.jobs.wanted import Wanted
from statekit.server.routes.reads import ROWS_MAX, WHOLE, AskedPart
from statekit.state.closed_bounds import ClosedBounds

SHAPES = "x-shapes"
"""Member of the JSON Schema of a parameter that depends on the state: for each shape of rows that
has the parameter, the kind of JSON that its text is; null for the schema itself.
"""


def of_shapes(**shapes: str | None) -> Any:
    """Return the field of a parameter that only states with some shapes of rows have.

    Parameters:
        shapes: by the name of the shape, or `any`, the kind of JSON that the text is, such as
            "key"; None if the text is of the type of the field.
    """
    return Field(json_schema_extra={SHAPES: dict(shapes)})


JsonText = Annotated[str, of_shapes(any="key")]
"""JSON of a key, or of a part of one."""


Bound = Annotated[str | None, of_shapes(entry="map_key", element="index")]
Limit = Annotated[int | None, Field(ge=1, le=ROWS_MAX)]
Offset = Annotated[int, Field(ge=0, le=ROWS_MAX)]

_CLOSED = "The bounds that are in the range; left without it."
_OFFSET = "The number of keys, entries or elements to leave out before the first one."
_COUNT = "Only the number of rows: values, entries or elements."


class PartParameters(Wanted):
    """Parameters of the part of a value, and of the epoch."""

    entry: Annotated[str | None, of_shapes(entry="map_key")] = Field(
        None, description="The one entry with this map key."
    )
    start: Bound = Field(None, description="The first map key or index.")
    end: Bound = Field(None, description="The map key or index after the last one; see closed.")
    closed: Annotated[ClosedBounds | None, of_shapes(entry=None)] = Field(None, description=_CLOSED)
    limit: Annotated[Limit, of_shapes(entry=None, element=None)] = Field(
        None, description="Limit of keys, entries or elements."
    )
    offset: Annotated[Offset, of_shapes(entry=None, element=None)] = Field(0, description=_OFFSET)
    reverse: Annotated[bool, of_shapes(entry=None)] = Field(
        False, description="From the last to the first."
    )
    count: Annotated[bool, of_shapes(entry=None, element=None)] = Field(False, description=_COUNT)
    rows: bool = Field(True, description="Of a stream of events: begin with all present rows.")

    @property
    def part(self) -> AskedPart:
        """The part of a value, or of the keys of a state, that a request asks for."""
        if not self.model_fields_set:
            return WHOLE
        prefix: str | None = getattr(self, "prefix", None)
        return AskedPart(
            entry=self.entry,
            start=self.start,
            end=self.end,
            limit=self.limit,
            reverse=self.reverse,
            prefix=prefix,
            closed=self.closed,
            offset=self.offset,
            count=self.count,
        )


class FileParameters(Wanted):
    """Parameters of a file with all rows of a state."""

    wide_ints: Literal["decimal", "text"] | None = Field(
        None, description="Of a file: the form of ints if some are 2^63 or more."
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
        None, description="The key after the last one; see closed."
    )
    closed: ClosedBounds | None = Field(None, description=_CLOSED)
    limit: Limit = Field(None, description="Limit of keys, entries or elements.")
    offset: Offset = Field(0, description=_OFFSET)
    reverse: bool = Field(False, description="From the last to the first.")
    count: bool = Field(False, description=_COUNT)
    cursor: str | None = Field(
        None, description="Of the page before. The next page is of the same epoch."
    )
    prefix: Annotated[str | None, of_shapes(any="prefix")] = Field(
        None,
        description="Only keys, or map keys of one key, that begin with this text, or these parts.",
    )
