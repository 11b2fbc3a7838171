"""Conditions and ranges of requests for files (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from email.utils import format_datetime, parsedate_to_datetime
from typing import NamedTuple

from statekit.server.answers.problems import Problem
from statekit.server.answers.values import is_known

_RANGES_MAX = 100
_RANGE = re.compile(r"([0-9]{1,50})?-([0-9]{1,50})?", re.ASCII)

Range = tuple[int, int]
"""The first and the last byte of a part."""


class Validators(NamedTuple):
    """The validators of a file's content: its tag and its time.

    Parameters:
        tag: its strong tag, in quotes.
        modified: the time of its last change.

    >>> file = Validators('"a"', dt.datetime(2026, 11, 25, 6, tzinfo=dt.UTC))
    >>> file.failed({"if-match": '"b"'}), file.failed({"if-none-match": 'W/"a"'}), file.failed({})
    (412, 304, None)
    >>> file.has_range({"range": "bytes=0-3", "if-range": '"b"'})
    False
    """

    tag: str
    modified: dt.datetime

    @property
    def headers(self) -> dict[str, str]:
        """Headers of an answer with the file."""
        return {"ETag": self.tag, "Last-Modified": format_datetime(self.modified, usegmt=True)}

    def failed(self, headers: Mapping[str, str]) -> int | None:
        """Return the status of the answer to a GET or HEAD request if its conditions do not hold:
        412 or 304; None if they hold.

        Parameters:
            headers: of the request.
        """
        if (tags := headers.get("if-match")) is not None:
            if "*" not in _tags(tags) and self.tag not in _tags(tags):
                return 412
        elif (until := _instant(headers.get("if-unmodified-since"))) and self.modified > until:
            return 412
        if (tags := headers.get("if-none-match")) is not None:
            return 304 if is_known(self.tag, tags) else None
        since = _instant(headers.get("if-modified-since"))
        return 304 if since is not None and self.modified <= since else None

    def has_range(self, headers: Mapping[str, str]) -> bool:
        """Return whether a GET request asks for parts of this content."""
        if "range" not in headers:
            return False
        given = headers.get("if-range")
        return given is None or given in (self.tag, self.headers["Last-Modified"])


def _tags(text: str) -> set[str]:
    return {tag.strip() for tag in text.split(",")}


def _instant(text: str | None) -> dt.datetime | None:
    """Return the time of a header; None if it is not a time."""
    try:
        found = None if text is None else parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return found if found is None or found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def ranges_of(header: str, size: int) -> list[Range]:
    """Return the parts of a file that a header asks for. Return none for a header to ignore: it is
    not valid, has another unit, or has too many parts.

    Parameters:
        header: the `Range` header.
        size: of the file, in bytes.

    Raises:
        Problem: no part lies in the file.

    >>> ranges_of("bytes=0-3, 8-, -2", 10), ranges_of("bytes=3-1", 10), ranges_of("rows=1-2", 10)
    ([(0, 3), (8, 9), (8, 9)], [], [])
    """
    unit, _, listed = header.partition("=")
    parts = [part for part in (each.strip() for each in listed.split(",")) if part]
    if unit.strip().lower() != "bytes" or not 0 < len(parts) <= _RANGES_MAX:
        return []
    found: list[Range] = []
    for part in parts:
        match = _RANGE.fullmatch(part)
        if match is None or match.group(0) == "-":
            return []
        first, last = (None if given is None else int(given) for given in match.groups())
        if first is None:
            first, last = max(0, size - (last or 0)), size - 1
        elif last is not None and last < first:
            return []
        if first < size:
            found.append((first, size - 1 if last is None else min(last, size - 1)))
    if not found:
        raise Problem(
            416,
            "range",
            f"the file has {size:,} bytes, and no part of {header!r:.100} lies in it: ask for less",
            {"Content-Range": f"bytes */{size}"},
        )
    return found
