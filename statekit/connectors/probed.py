"""Probes of sources and sinks: `statekit check` asks whether a run would reach them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

D = TypeVar("D", contravariant=True)


class Probed(Generic[D]):
    """A source or a sink that can say whether a run would reach it, and whether the types fit.

    By default nothing is checked.

    >>> list(Probed[str]().probe("orders", 10.0))
    []
    """

    def probe(self, declared: D, limit_s: float) -> Iterator[str]:
        """Connect as a run does, and yield the findings, as texts for people.

        Nothing is left behind: no record is consumed, no offset noted, and no file or table is
        made. It is called in a thread of its own.

        Parameters:
            declared: what a run would read or write: the type of the records of a source, or the
                outputs of a sink.
            limit_s: how long a request may take, retries included, in seconds.

        Raises:
            ProcessError: a record that was read does not fit its type.
            StatekitError: it cannot be reached, or refuses, or its types do not fit.
        """
        return iter(())
