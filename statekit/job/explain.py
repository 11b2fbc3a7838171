"""`Job.explain()`: the execution of a job on Spark, and the cost of its last epoch."""

from __future__ import annotations

from collections.abc import Iterator

from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch
from statekit.job.chaining import Chain, Pass, passes, passes_before
from statekit.job.plan import Operator, Plan, Transform
from statekit.job.windows.aggregated_result import AggregatedResult
from statekit.stored_types import held_back_text


def explained_plan(plan: Plan, last: EpochManifest | None = None) -> str:
    """Describe how the operators of a plan run on Spark.

    Parameters:
        last: the last epoch of a checkpoint; None to describe no epoch.
    """
    lines, found = [f"job {plan.name}"], passes(plan)
    for number, each in enumerate(found, start=1):
        lines.append(
            f"pass {number}, fed by {' and '.join(each.streams)}{_after(plan, each, found)}"
        )
        lines += (f"    {line}" for line in _of_pass(plan, each))
    for transform in _transforms_alone(plan, [chain for each in found for chain in each.chains]):
        lines.append(
            f"{transform.function.kind} {transform.name}: over the rows of {transform.input}"
        )
    lines += _of_ends(plan)
    if last is not None:
        lines += _of_epoch(plan, last)
    return "\n".join(lines)


def _of_ends(plan: Plan) -> Iterator[str]:
    """Yield where the job itself says that records come from and go to."""
    for each in plan.sources:
        if each.source is not None:
            kind = "a table" if each.source.is_bounded else "a stream"
            bad = "" if each.on_error == "fail" else f"; bad records: {each.on_error}"
            yield f"source {each.name}: {each.source}, {kind}{bad}"
    for sink in plan.sinks:
        if sink.target is not None:
            guarantee = sink.target.guarantee or "as often as its function writes it"
            yield f"sink {sink.name}: {sink.target}, each record {guarantee}"


def _of_epoch(plan: Plan, last: EpochManifest) -> Iterator[str]:
    """Yield the CPU time and the executors of an epoch, the operator with the most CPU time
    first.
    """
    ran = {each.name: last.operators.get(each.name) for each in plan.operators}
    epochs = {name: epoch for name, epoch in ran.items() if epoch is not None}
    total_us = sum(epoch.cpu_us for epoch in epochs.values())
    yield f"epoch {last.epoch}, {total_us / 1e6:.2f} s of CPU in workers"
    for name in sorted(epochs, key=lambda name: -epochs[name].cpu_us):
        epoch = epochs[name]
        share = epoch.cpu_us / total_us if total_us else 0.0
        yield (
            f"    {name}: {epoch.cpu_us / 1e6:.2f} s ({share:.0%}) for {epoch.records_in:,} "
            f"records, {len(epoch.shards):,} shards{_where(epoch)}"
        )
    for name, epoch in epochs.items():
        if epoch.held_back is not None:
            yield f"    {name} {held_back_text(epoch.held_back)}"


def _where(epoch: OperatorEpoch) -> str:
    """Return the placement of an operator's shards as text; empty without a cluster."""
    placed = epoch.placed
    if not placed.shards:
        return ""
    where = ", ".join(f"{count:,} on executor {id}" for id, count in placed.shards.items())
    return (
        f": {where}; {placed.moved:,} had moved; {placed.restored_bytes:,} bytes restored, "
        f"{placed.caught_up_bytes:,} caught up"
    )


def _transforms_alone(plan: Plan, chained: list[Chain]) -> Iterator[Transform]:
    inside = [name for each in chained for some in each.transforms for name in some]
    inside += [transform for each in chained for transform in each.after]
    yield from (transform for transform in plan.transforms if transform not in inside)


def _after(plan: Plan, each: Pass, found: list[Pass]) -> str:
    """Return the passes that must end before a pass, as text; empty if there are none."""
    numbers = [str(found.index(before) + 1) for before in passes_before(plan, each, found)]
    return f", after pass {' and '.join(numbers)}" if numbers else ""


def _of_pass(plan: Plan, each: Pass) -> Iterator[str]:
    first = each.first
    yield from _reading(plan, each)
    if first.declared.key:
        yield f"shuffled once, by the key group of {', '.join(first.declared.key)}"
    elif first.declared.traits.calls is not None:
        yield "each partition goes to one shard, so that its records stay in order"
    else:
        yield "distributed round robin over the shards, as there is no key"
    for chain in each.chains:
        if chain.apart is not None:
            own = "a pass of its own" if len(each.chains) == 1 else f"{chain.first.name} by itself"
            yield f"{own}: {chain.apart}"
        yield from _of_chain(chain, None if chain is each.chains[0] else first)


def _of_chain(each: Chain, beside: Operator | None) -> Iterator[str]:
    """Yield the steps that run in the tasks of a chain.

    Parameters:
        beside: the first operator of the pass, if that is another one.
    """
    chained = zip((beside, *each.operators), each.operators, each.transforms, strict=False)
    for before, operator, transforms in chained:
        where = "" if before is None else f", in the same tasks as {before.name}"
        if before is not None and before is beside:
            where = f", over the same rows as {before.name}"
        for transform in transforms:
            yield _runs_in(transform, operator)
        yield f"{operator.name}: {_calls(operator, is_shuffled=operator is each.first)}{where}"
    for transform in each.after:
        yield _runs_in(transform, each.last)


def _runs_in(transform: Transform, operator: Operator) -> str:
    return f"{transform.function.kind} {transform.name}: in the same tasks as {operator.name}"


def _reading(plan: Plan, each: Pass) -> Iterator[str]:
    """Yield the columns that leave the JVM."""
    combiner = each.first.declared.traits.combiner
    for stream in each.streams:
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
    if (call := declared.traits.calls) is not None:
        what = "each record" if call.batch is None else f"up to {call.batch:,} records"
        return f"called for {what}, with up to {call.concurrency:,} open calls per task"
    if declared.traits.combiner is not None:
        is_before = is_shuffled and declared.traits.combiner.reduces
        where = "before the shuffle" if is_before else "in Arrow"
        text = f"{', '.join(declared.traits.combiner.description)}, combined {where}"
        if declared.traits.takes_columns:
            made_of = declared.traits.made_of
            is_window = isinstance(made_of, AggregatedResult) and made_of.window is not None
            how = "added to windows and fired" if is_window else "kept"
            return f"{text}, {how} for many keys at a time"
        return f"{text}, added to windows for each key and interval"
    if declared.traits.takes_many:
        return "the records of many keys at a time are joined in columns"
    if declared.traits.takes_parts:
        return "called with the records of a key together"
    if declared.takes_runs:
        whose = "key" if declared.key else "shard"
        return f"called once per {whose} and epoch, with all records of the {whose}"
    if declared.ordered is not None:
        return "called for each record, once the watermark has passed it"
    if declared.is_async:
        most = f"{declared.traits.concurrency:,} keys at a time per task"
        return f"called for one record of a key after the other, and for up to {most}"
    return "called for each record"
