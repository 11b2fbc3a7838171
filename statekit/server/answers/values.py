"""Answers: values as JSON with the facts of their epoch, and tags for conditional requests.

A tag depends on the value, and not on the epoch: a client that has the value gets 304 as long as
the value stays the same.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import msgspec
import xxhash
from starlette.responses import Response

encode = msgspec.json.Encoder().encode

_COMPRESSION = 4


def tag_of(value: bytes) -> str:
    """Return the weak tag of a JSON value: equal values have equal tags."""
    return f'W/"{xxhash.xxh3_128_hexdigest(value)}"'


def is_known(tag: str, if_none_match: str | None) -> bool:
    """Return whether an `If-None-Match` header has a tag: the client then has the value.

    >>> is_known('W/"a"', 'W/"b", W/"a"'), is_known('W/"a"', '"a"'), is_known('W/"a"', None)
    (True, True, False)
    """
    if if_none_match is None:
        return False
    given = {each.strip().removeprefix("W/") for each in if_none_match.split(",")}
    return "*" in given or tag.removeprefix("W/") in given


def value_with_facts(value: bytes, facts: Mapping[str, Any]) -> bytes:
    """Return the JSON of an answer: `{"value": …, "epoch": …}`.

    >>> value_with_facts(b"5", {"epoch": 7})
    b'{"value":5,"epoch":7}'
    """
    return b'{"value":' + value + b"," + encode(facts)[1:]


class Zipped(NamedTuple):
    """Content that the server keeps, with gzip.

    Parameters:
        content: with gzip.
        tag: its weak tag.
        media_type: of the content.
    """

    content: bytes
    tag: str
    media_type: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> Self:
        """Compress content."""
        return cls(gzip.compress(content, _COMPRESSION), tag_of(content), media_type)

    def answer(self, asked: Mapping[str, str], vary: str = "Accept-Encoding") -> Response:
        """Return the answer with the content, or 304 if the client has it.

        Parameters:
            asked: the headers of the request.
            vary: the headers on which the content depends.
        """
        headers = {"ETag": self.tag, "Cache-Control": "no-cache", "Vary": vary}
        if is_known(self.tag, asked.get("if-none-match")):
            return Response(status_code=304, headers=headers)
        if "gzip" not in asked.get("accept-encoding", ""):
            return Response(gzip.decompress(self.content), 200, headers, self.media_type)
        headers["Content-Encoding"] = "gzip"
        return Response(self.content, 200, headers, self.media_type)


class ReadyResponse(Response):
    """A response of JSON whose headers are encoded already: that takes as long as a read.

    Parameters:
        body: its content.
        tag: its weak tag.
    """

    def __init__(self, body: bytes, tag: str) -> None:
        self.status_code, self.body, self.background = 200, body, None
        length = (b"content-length", str(len(body)).encode())
        self.raw_headers = [*_HEADERS, (b"etag", tag.encode()), length]


_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache")]


def answer(value: Any, facts: Mapping[str, Any], if_none_match: str | None) -> Response:
    """Return the answer with a value, or 304 if the client has it."""
    encoded = encode(value)
    tag = tag_of(encoded)
    if is_known(tag, if_none_match):
        return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "no-cache"})
    return ReadyResponse(value_with_facts(encoded, facts), tag)
