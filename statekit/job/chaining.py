"""Which operators share one shuffle and one pass over the records, and why others do not.

An operator that is fed by one other and keyed alike finds its records where they are made, as long
as what is put out for a key has that key. Nobody can tell that of a function. So those whose keys
have the same names are taken to be so, and a worker that finds a record of another shard ends the
pass; then both run apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from statekit.job.plan import Operator, Plan


@dataclass(frozen=True)
class Chain:
    """Operators that run one behind the other in the same tasks.

    Parameters:
        operators: each fed by the one before.
        apart: why the first one is not in the pass of what feeds it; None behind a source.
    """

    operators: tuple[Operator, ...]
    apart: str | None = None

    @property
    def first(self) -> Operator:
        """The operator whose records are shuffled."""
        return self.operators[0]

    @property
    def last(self) -> Operator:
        """The operator whose outputs come out."""
        return self.operators[-1]


def chains(plan: Plan, strayed: Collection[str] = ()) -> list[Chain]:
    """All operators of a plan, in passes; each comes behind those that feed it.

    Parameters:
        strayed: operators that were found to be fed with other keys.
    """
    found: list[Chain] = []
    for operator in plan.operators:
        feeders = [each for each in found if each.last.name in operator.streams]
        apart = _apart(plan, operator, feeders, strayed) if feeders else None
        if feeders and apart is None:
            (before,) = feeders
            joined = Chain((*before.operators, operator), before.apart)
            found[found.index(before)] = joined
        else:
            found.append(Chain((operator,), apart))
    return found


def _apart(
    plan: Plan, operator: Operator, feeders: list[Chain], strayed: Collection[str]
) -> str | None:
    """Why an operator cannot be in the pass of what feeds it; None if it can."""
    if len(operator.streams) > 1:
        return "it is fed by several streams"
    before = feeders[0].last
    declared, feeding = operator.declared, before.declared
    if operator.name in strayed:
        return f"{before.name} puts out records of other keys than it is called for"
    if declared.key != feeding.key:
        return f"it is keyed by {_key(declared.key)}, and {before.name} by {_key(feeding.key)}"
    if not declared.key:
        return "its records are dealt out to the shards in turn"
    if plan.sinks_of(before.name) or len(plan.consumers_of(before.name)) > 1:
        return f"what {before.name} puts out goes elsewhere, too"
    if declared.takes_columns:
        return "its records are combined before they are shuffled"
    if declared.takes_runs and not declared.takes_parts:
        return "it is called with all records of a key at once"
    if plan.wants_late(operator):
        return "its late records are wanted"
    return None


def _key(key: tuple[str, ...]) -> str:
    return ", ".join(key) or "nothing"
