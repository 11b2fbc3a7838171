"""Shown epochs: the epochs that a page can show, and the one that it shows."""

from __future__ import annotations

from typing import NamedTuple

from statekit.query.replica.view import View
from statekit.server.job_facts import JobFacts
from statekit.server.wanted import Wanted


class ShownEpochs(NamedTuple):
    """The epochs of a page.

    Parameters:
        readable: those that can be read, in order.
        chosen: the one that the user has chosen; None for the last one.
        shown: the one that the page shows.
    """

    readable: list[int]
    chosen: int | None
    shown: int

    @property
    def newer(self) -> int:
        """Number of epochs after the one that is shown."""
        return sum(epoch > self.shown for epoch in self.readable)


def shown_epochs(facts: JobFacts, chosen: int | None, shown: int | None = None) -> ShownEpochs:
    """Return the epochs of a page.

    Parameters:
        chosen: by the user; the last readable one before it counts.
        shown: the epoch that the page shows already; None for the last one.
    """
    readable = facts.job.readable_epochs
    if chosen is not None and readable[0] <= chosen <= readable[-1]:
        chosen = max(epoch for epoch in readable if epoch <= chosen)
    last = facts.view.epoch if shown is None else shown
    return ShownEpochs(readable, chosen, last if chosen is None else chosen)


async def view_of(facts: JobFacts, epochs: ShownEpochs) -> View:
    """Return the view of the epoch that a page shows.

    Raises:
        Problem: it can no longer be read.
    """
    if epochs.chosen is None:
        return facts.view
    return await facts.job.view(Wanted(epoch=epochs.chosen))
