"""Reads: the values that requests read from a view, with JSON types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from statekit.checkpoint.state_kinds import RowShape
from statekit.query.replica.state_view import LargeKeyError, StateView
from statekit.query.replica.view import View
from statekit.server.answers.problems import Problem, bad_request
from statekit.state.closed_bounds import ClosedBounds, closed_ends

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
    part.check()
    if part.entry is not None:
        return state.entry(key, state.map_key_from_json(json_of(part.entry, "entry")))
    if not part.is_range:
        return state.get_at_most(key, ROWS_MAX)
    if state.shape is RowShape.ENTRIES:
        return _entries(state, key, part)
    if state.shape is RowShape.ELEMENTS:
        return _slice(state, key, part)
    raise bad_request(
        "this state has one value per key: start, end, closed, limit, offset, reverse and count "
        "are for maps and lists"
    )


def _entries(state: StateView[Any, Any], key: Any, part: AskedPart) -> list[Any] | int:
    """Return the entries of a map in a range, or their number."""
    selected = part.selected(state.map_key_from_json)
    if selected is None:
        return 0 if part.count else []
    if part.count:
        return state.count_of(key, **selected)
    return [list(entry) for entry in state.entries(key, **selected, **part.window(ROWS_MAX))]


def _slice(state: StateView[Any, Any], key: Any, part: AskedPart) -> list[Any] | int:
    """Return the elements of a list between two indices, or their number."""
    if part.reverse:
        raise bad_request("elements of a list are read from the first to the last")
    if part.prefix is not None or part.closed is not None:
        raise bad_request(
            "elements of a list are read from the index start= to the index before end=: leave "
            "prefix= and closed= out"
        )
    start = _index(part.start, "start") or 0
    stop = _index(part.end, "end")
    if part.count:
        found = state.count_of(key)
        return max(0, (found if stop is None else min(stop, found)) - start)
    start += part.offset
    limit = start + (ROWS_MAX if part.limit is None else part.limit)
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
        start, end: the bounds of keys or map keys, as JSON, or of indices of elements.
        limit: limit of entries, elements or keys; None for the limit of an answer.
        reverse: entries from the last to the first.
        prefix: of keys or map keys, as JSON.
        closed: the bounds that are in the range; None for "left".
        offset: the number of keys, entries or elements to leave out before the first one.
        count: only the number of rows in the range.
    """

    entry: str | None = None
    start: str | None = None
    end: str | None = None
    limit: int | None = None
    reverse: bool = False
    prefix: str | None = None
    closed: ClosedBounds | None = None
    offset: int = 0
    count: bool = False

    def check(self) -> None:
        """Check that the parts fit each other.

        Raises:
            Problem: they do not.
        """
        if self.entry is not None and self != AskedPart(entry=self.entry):
            raise bad_request("entry= reads one entry: leave the parameters of a range out")
        if self.count and (self.limit is not None or self.offset or self.reverse):
            raise bad_request(
                "count= counts all rows of a range: leave limit=, offset= and reverse= out"
            )

    def selected(self, of_json: Callable[[Any], Any]) -> dict[str, Any] | None:
        """Return the range that the request selects, as arguments of `StateView`; None if nothing
        can be in it.

        Parameters:
            of_json: returns a key, or a map key, of JSON.

        Raises:
            StateTypeError: a bound is not a key.
            Problem: a part is not JSON, or null is a bound that `closed` needs.
        """
        given = {"start": self.start, "end": self.end}
        bounds = {name: of_json(json_of(of, name)) for name, of in given.items() if of is not None}
        closed = self.closed or "left"
        has_start, has_end = closed_ends(closed)
        for name, is_refused in (("start", not has_start), ("end", has_end)):
            if is_refused and bounds.get(name, "") is None:
                raise bad_request(
                    f"closed={closed} with {name}=null, which is before all other keys: leave it "
                    "out, or use closed=left"
                )
        if bounds.get("end", "") is None:
            return None  # nothing is before null
        prefix = None if self.prefix is None else json_of(self.prefix, "prefix")
        return bounds | {"prefix": prefix, "closed": closed}

    def window(self, limit: int) -> dict[str, Any]:
        """Return the entries or keys of the range to read, as arguments of `StateView`.

        Parameters:
            limit: if the request has none.
        """
        asked = limit if self.limit is None else self.limit
        return {"limit": asked, "offset": self.offset, "reverse": self.reverse}

    @property
    def is_range(self) -> bool:
        """True if the request asks for a part of a list or a map."""
        return self is not WHOLE and self != WHOLE


WHOLE = AskedPart()


def page_of_keys(
    state: StateView[Any, Any], part: AskedPart, cursor: str | None
) -> dict[str, Any] | int:
    """Return the keys of a range in order, with their values, and the cursor of the next page; or
    the number of rows of the range. A page has at most `ROWS_MAX` rows.

    Raises:
        QueryError, StateTypeError: as for `StateView.page`.
        Problem: a bound is not JSON, a parameter is for single keys, or the first key has too many
            rows.
    """
    if part.entry is not None:
        raise bad_request("entry= is for one key: give key=, too")
    part.check()
    if cursor is not None and (part.count or part.offset):
        raise bad_request(
            "cursor= continues a scan, and count= and offset= are of all of it: leave one of them "
            "out"
        )
    selected = part.selected(state.key_from_json)
    if selected is None:
        return 0 if part.count else {"items": [], "cursor": None}
    if part.count:
        return state.count(**selected)
    options = selected | part.window(_PAGE_ROWS)
    try:
        found = state.page(**options, cursor=cursor, rows=ROWS_MAX)
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
