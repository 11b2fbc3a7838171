"""Options of the data sources: parsed and checked when a frame is loaded."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from statekit.errors import StateTypeError
from statekit.shown import shown

Given = Mapping[str, str]

_FLAGS = {"true": True, "false": False}


class Options:
    """The options of a user for a data source.

    Parameters:
        source: the format of the data source, for messages.
        given: the options. Spark gives their names in lower case.
        known: the names of all options of the data source, as in the documentation.

    Raises:
        StateTypeError: an option has another name.

    >>> options = Options("statekit", {"path": "/c", "wideints": "true"}, ["path", "wideInts"])
    >>> options.text("path"), options.flag("wideInts")
    ('/c', True)
    """

    def __init__(self, source: str, given: Given, known: Sequence[str]) -> None:
        self._source = source
        self._given = {name.lower(): value for name, value in given.items()}
        names = {name.lower(): name for name in known}
        for name, value in self._given.items():
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                advice = f"did you mean {names[close[0]]}? It" if close else "it"
                raise StateTypeError(
                    f"option {name}={shown(value)}: format {source!r} has no such option. Nothing "
                    f"was read: {advice} has {', '.join(known)}"
                )

    def text(self, name: str) -> str | None:
        """Return an option; None if it was not given."""
        return self._given.get(name.lower())

    def required(self, name: str, example: str) -> str:
        """Return an option that is mandatory.

        Raises:
            StateTypeError: it was not given, or is empty.
        """
        value = self.text(name)
        if not value:
            raise StateTypeError(
                f"format {self._source!r} needs the option {name}. Nothing was read: add {example}"
            )
        return value

    def number(self, name: str, *, least: int = 0) -> int | None:
        """Return the value of a numeric option; None if it was not given.

        Raises:
            StateTypeError: it is no number, or less than `least`.
        """
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and int(value) >= least):
            raise self.wrong(name, f"give a whole number from {least}")
        return int(value)

    def flag(self, name: str) -> bool:
        """Return the value of a boolean option; False if it was not given.

        Raises:
            StateTypeError: it is neither.
        """
        value = self.text(name) or "false"
        if value.lower() not in _FLAGS:
            raise self.wrong(name, "give true or false")
        return _FLAGS[value.lower()]

    def wrong(self, name: str, advice: str) -> StateTypeError:
        """Return the error for an invalid value of an option."""
        return StateTypeError(
            f"option {name}={shown(self.text(name))} of format {self._source!r} is not valid. "
            "Nothing "
            f"was read: {advice}"
        )

    def refuse(self, names: Sequence[str], where: str) -> None:
        """Check that no option was given that has no effect.

        Parameters:
            where: what they are for.

        Raises:
            StateTypeError: one was given.
        """
        for name in names:
            if self.text(name) is not None:
                raise self.wrong(name, f"it is for {where}: leave it out")
