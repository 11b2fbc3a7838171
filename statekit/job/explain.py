"""`Job.explain()`: how a job processes its records on Spark, and why."""

from __future__ import annotations

from collections.abc import Iterator

from statekit.job.chaining import Chain, chains
from statekit.job.plan import Operator, Plan


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
