"""Operator chaining: which operators share one shuffle, why others do not, and `Job.explain()`.

An operator that is fed by one other operator with the same key can run where its records are
emitted, if the records that are emitted for a key have that key. statekit cannot know this. It
assumes it if the key fields have the same names. A worker that finds a record of another shard
fails the epoch, which then runs again without the chain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from statekit.job.plan import Operator, Plan


@dataclass(frozen=True)
class Chain:
    """Operators that run one after the other in the same tasks.

    Parameters:
        operators: each fed by the one before.
        apart: why the first one is not chained to the operator that feeds it; None after a source.
    """

    operators: tuple[Operator, ...]
    apart: str | None = None

    @property
    def first(self) -> Operator:
        """The operator whose records are shuffled."""
        return self.operators[0]

    @property
    def last(self) -> Operator:
        """The operator whose outputs leave the chain."""
        return self.operators[-1]


def chains(plan: Plan, strayed: Collection[str] = ()) -> list[Chain]:
    """Return all operators of a plan in chains, each after those that feed it.

    Parameters:
        strayed: operators that have received records with other keys.
    """
    chained: list[Chain] = []
    for operator in plan.operators:
        feeders = [each for each in chained if each.last.name in operator.streams]
        apart = _apart(plan, operator, feeders, strayed) if feeders else None
        if feeders and apart is None:
            (before,) = feeders
            joined = Chain((*before.operators, operator), before.apart)
            chained[chained.index(before)] = joined
        else:
            chained.append(Chain((operator,), apart))
    return chained


def _apart(
    plan: Plan, operator: Operator, feeders: list[Chain], strayed: Collection[str]
) -> str | None:
    """Return why an operator cannot be chained to the one that feeds it; None if it can."""
    if len(operator.streams) > 1:
        return "it is fed by several streams"
    before = feeders[0].last
    declared, feeding = operator.declared, before.declared
    if operator.name in strayed:
        return f"{before.name} emits records with other keys than {operator.name} has"
    if declared.key != feeding.key:
        return f"it is keyed by {_key(declared.key)}, and {before.name} by {_key(feeding.key)}"
    if not declared.key:
        return "its records are distributed round robin over the shards"
    if plan.sinks_of(before.name) or len(plan.consumers_of(before.name)) > 1:
        return f"{before.name} has other consumers"
    if declared.traits.takes_columns:
        return "its records are combined before they are shuffled"
    if declared.takes_runs and not declared.traits.takes_parts:
        return "it is called with all records of a key at once"
    if plan.wants_late(operator):
        return "its late records are wanted"
    return None


def _key(key: tuple[str, ...]) -> str:
    return ", ".join(key) or "nothing"


# ----------------------------------------------------------------------------------- Job.explain()


def explained(plan: Plan) -> str:
    """Describe how the operators of a plan run on Spark."""
    lines = [f"job {plan.name}"]
    for number, each in enumerate(chains(plan), start=1):
        lines.append(f"pass {number}, fed by {' and '.join(each.first.streams)}")
        lines += (f"    {line}" for line in _of_pass(plan, each))
    return "\n".join(lines)


def _of_pass(plan: Plan, each: Chain) -> Iterator[str]:
    first = each.first
    yield from _reading(plan, first)
    if first.declared.key:
        yield f"shuffled once, by the key group of {', '.join(first.declared.key)}"
    else:
        yield "distributed round robin over the shards, as there is no key"
    if each.apart is not None:
        yield f"a pass of its own: {each.apart}"
    for before, operator in zip((None, *each.operators), each.operators, strict=False):
        behind = "" if before is None else f", in the same tasks as {before.name}"
        yield f"{operator.name}: {_calls(operator, is_shuffled=before is None)}{behind}"


def _reading(plan: Plan, operator: Operator) -> Iterator[str]:
    """Yield which columns leave the JVM."""
    combiner = operator.declared.traits.combiner
    for stream in operator.streams:
        records = plan.record_of(stream)
        if records is None:
            continue
        for member in records.members if combiner is None else (combiner.read(),):
            if member.fields is None:
                yield f"reads all columns of {stream}: a dict does not say which"
            else:
                why = "; every record is validated" if member.flavour == "pydantic" else ""
                yield f"reads {', '.join(member.field_names)} of {stream}, and nothing else{why}"


def _calls(operator: Operator, *, is_shuffled: bool) -> str:
    declared = operator.declared
    if declared.traits.combiner is not None:
        text = f"{', '.join(declared.traits.combiner.description)}, combined in Arrow"
        text += " before the shuffle" if is_shuffled else ""
        if declared.traits.takes_columns:
            return f"{text}, kept for many keys at a time"
        return f"{text}, added to windows for each key and interval"
    if declared.traits.takes_parts:
        return "called with the records of a key together"
    if declared.takes_runs:
        whose = "key" if declared.key else "shard"
        return f"called once per {whose} and epoch, with all records of the {whose}"
    if declared.ordered is not None:
        return "called for each record, once the watermark has passed it"
    return "called for each record"
