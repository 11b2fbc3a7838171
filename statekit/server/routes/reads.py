"""Reads: the values that requests read from a view, with JSON types."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from statekit.checkpoint.state_kinds import RowShape
from statekit.query.replica.state_view import LargeKeyError, StateView
from statekit.query.replica.view import View
from statekit.server.answers.problems import Problem, bad_request

KEYS_MAX = 10_000
"""Limit of the keys of one request."""

ROWS_MAX = 10_000
"""Limit of the keys, entries or elements of one answer."""


_PAGE_ROWS = 1_000
"""Default number of keys of a page."""


def json_of(text: str, name: str) -> Any:
    """Return the decoded JSON of a request parameter.

    Raises:
        Problem: it is not JSON.

    >>> json_of('["UA", 1545]', "key")
    ['UA', 1545]
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_request(
            f'{name}={text!r:.200} is no JSON ({error}): text is in quotes, as in {name}="ann"'
        ) from error


def read_key(state: StateView[Any, Any], key: Any, part: AskedPart) -> Any:
    """Return the value of a state for a key, or a part of it.

    Raises:
        QueryError, StateTypeError: as for `StateView`.
        Problem: the part does not fit the state.
    """
    if part.entry is not None:
        return state.entry(key, state.map_key_from_json(json_of(part.entry, "entry")))
    if not part.is_range:
        return state.get_at_most(key, ROWS_MAX)
    if state.shape is RowShape.ENTRIES:
        bounds = [
            None if bound is None else state.map_key_from_json(json_of(bound, name))
            for name, bound in (("start", part.start), ("end", part.end))
        ]
        found = state.entries(key, *bounds, reverse=part.reverse, prefix=part.prefix_value)
        return [list(entry) for entry in itertools.islice(found, part.rows)]
    if state.shape is RowShape.ELEMENTS:
        return _slice(state, key, part)
    raise bad_request(
        "this state has one value per key: start, end, limit and reverse are for maps and lists"
    )


def _slice(state: StateView[Any, Any], key: Any, part: AskedPart) -> list[Any]:
    if part.reverse:
        raise bad_request("elements of a list are read from the first to the last")
    start = _index(part.start, "start") or 0
    stop = _index(part.end, "end")
    limit = start + part.rows
    return state.elements(key, start, limit if stop is None else min(stop, limit))


def _index(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise bad_request(f"{name}={text!r:.50}: give the index of an element, from 0 on")
    return int(text)


class AskedPart(msgspec.Struct, frozen=True):
    """The part of a value to read; by default all of it.

    Parameters:
        entry: a map key, as JSON.
        start, end: the bounds of map keys, as JSON, or of indices of elements; the end is left out.
        limit: limit of entries, elements or keys; None for the limit of an answer.
        reverse: entries from the last to the first.
        prefix: of keys or map keys, as JSON.
    """

    entry: str | None = None
    start: str | None = None
    end: str | None = None
    limit: int | None = None
    reverse: bool = False
    prefix: str | None = None

    @property
    def prefix_value(self) -> Any:
        """The prefix of keys; None for all.

        Raises:
            Problem: it is not JSON.
        """
        return None if self.prefix is None else json_of(self.prefix, "prefix")

    @property
    def is_range(self) -> bool:
        """True if the request asks for a part of a list or a map."""
        return self is not WHOLE and self != WHOLE

    @property
    def rows(self) -> int:
        """Limit of entries or elements."""
        return ROWS_MAX if self.limit is None else self.limit


WHOLE = AskedPart()


def page_of_keys(state: StateView[Any, Any], part: AskedPart, cursor: str | None) -> dict[str, Any]:
    """Return the keys of a range in order, with their values, and the cursor of the next page. A
    page has at most `ROWS_MAX` rows.

    Raises:
        QueryError, StateTypeError: as for `StateView.page`.
        Problem: a bound is not JSON, a parameter is for single keys, or the first key has too many
            rows.
    """
    if part.entry is not None:
        raise bad_request("entry= is for one key: give key=, too")
    bounds = [
        None if bound is None else state.key_from_json(json_of(bound, name))
        for name, bound in (("start", part.start), ("end", part.end))
    ]
    if part.end is not None and bounds[1] is None:  # nothing is before None
        return {"items": [], "cursor": None}
    limit = _PAGE_ROWS if part.limit is None else part.limit
    options: dict[str, Any] = {"limit": limit, "reverse": part.reverse, "rows": ROWS_MAX}
    try:
        found = state.page(*bounds, **options, cursor=cursor, prefix=part.prefix_value)
    except LargeKeyError as error:
        facts = {"key": error.key, "cursor": error.cursor}
        raise Problem(413, "too_large", str(error), **facts) from error
    return {"items": [list(item) for item in found.items], "cursor": found.cursor}


class KeysOfState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of a state in a request.

    Parameters:
        operator, state: their names.
        keys: as JSON.
    """

    operator: str
    state: str
    keys: list[Any]


def check_count(keys: int) -> None:
    """Check that a request does not ask for too many keys.

    Raises:
        Problem: it asks for too many keys.
    """
    if keys > KEYS_MAX:
        raise Problem(413, "too_large", f"a request may ask for {KEYS_MAX:,} keys: divide it")


def read_many(view: View, asked: Sequence[KeysOfState]) -> Iterator[list[Any]]:
    """Yield the values of each state for its keys, in their order; None for absent values.

    Raises:
        Problem: there are too many keys.
        QueryError, StateTypeError: there is no such state, or it is not a key.
    """
    check_count(sum(len(own.keys) for own in asked))
    left = ROWS_MAX
    for own in asked:
        state = view.state(own.operator, own.state)
        keys = [state.key_from_json(key) for key in own.keys]
        if state.shape is RowShape.VALUE:
            yield state.get_many(keys)
            continue
        values = []
        for key in keys:
            value: Any = state.get_at_most(key, left)
            left -= len(value)
            values.append(value or None)
        yield values
