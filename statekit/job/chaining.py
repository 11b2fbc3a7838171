"""Operator chaining: which operators share one shuffle, why others do not, and `Job.explain()`.

An operator that is fed by one other operator with the same key can run where its records are
emitted, if the records that are emitted for a key have that key. statekit cannot know this. It
assumes it if the key fields have the same names. A worker that finds a record of another shard
fails the epoch, which then runs again without the chain.

Transforms run in the tasks of the operator that reads their outputs, or of the one that feeds them,
under the same assumption.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from statekit.job.plan import Operator, Plan, Transform
from statekit.records.output_union import AnyOutput
from statekit.records.record_type import RecordType
from statekit.records.union import Records


@dataclass(frozen=True)
class Chain:
    """Operators that run one after the other in the same tasks.

    Parameters:
        operators: each fed by the one before.
        transforms: for each operator, the transforms of its records that run in the same tasks.
        after: the transforms of the outputs of the last one that run in the same tasks.
        apart: why the first one is not chained to the operator that feeds it; None after a source.
    """

    operators: tuple[Operator, ...]
    transforms: tuple[tuple[Transform, ...], ...]
    after: tuple[Transform, ...] = ()
    apart: str | None = None

    @property
    def first(self) -> Operator:
        """The operator whose records are shuffled."""
        return self.operators[0]

    @property
    def last(self) -> Operator:
        """The operator whose outputs leave the chain."""
        return self.operators[-1]

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the streams that it reads."""
        before = self.transforms[0]
        return (before[0].input,) if before else self.first.streams

    @property
    def shuffled(self) -> Records:
        """The type, or types, of the records that are shuffled."""
        before = self.transforms[0]
        return before[0].function.record_type if before else self.first.declared.record_type

    @property
    def output_type(self) -> AnyOutput | None:
        """The type of what it emits; None if it emits nothing."""
        return self.after[-1].function.output_type if self.after else self.last.declared.output_type

    @property
    def output(self) -> str:
        """The name of the stream that it emits."""
        return self.after[-1].name if self.after else self.last.name


def chains(plan: Plan, strayed: Collection[str] = ()) -> list[Chain]:
    """Return all operators of a plan in chains, each after those that feed it.

    Parameters:
        strayed: operators that have received records with other keys.
    """
    chained: list[Chain] = []
    for operator in plan.operators:
        before = _transforms_before(plan, operator, strayed)
        stream = before[0].input if before else operator.streams[0]
        feeding = {plan.origin_of(stream) for stream in operator.streams}
        feeders = [each for each in chained if each.last.name in feeding]
        apart = _apart(plan, operator, stream, feeders, strayed) if feeders else None
        if feeders and apart is None:
            (fed_by,) = feeders
            transforms = (*fed_by.transforms, before)
            joined = Chain((*fed_by.operators, operator), transforms, apart=fed_by.apart)
            chained[chained.index(fed_by)] = joined
        else:
            # Transforms that run after an operator do not run once more before the next one.
            after = {each for fed in feeders for each in _transforms_after(plan, fed.last)}
            own = tuple(transform for transform in before if transform not in after)
            chained.append(Chain((operator,), (own,), apart=apart))
    return [replace(each, after=_transforms_after(plan, each.last)) for each in chained]


def _transforms_before(
    plan: Plan, operator: Operator, strayed: Collection[str]
) -> tuple[Transform, ...]:
    """Return the transforms that can run where an operator receives their outputs.

    The records that they take are shuffled by the key of the operator, so they need its fields.
    """
    declared = operator.declared
    can_run = len(operator.streams) == 1 and declared.key and declared.traits.combiner is None
    if not can_run or operator.name in strayed or plan.wants_late(operator):
        return ()
    found: list[Transform] = []
    transform = plan.transform(operator.streams[0])
    while transform is not None and plan.reads_of(transform.name) == 1:
        members = transform.function.record_type.members
        is_chained = plan.is_operator(transform.input) and plan.reads_of(transform.input) == 1
        if len(members) > 1 and not is_chained:
            break  # Spark splits a frame of several types
        if transform.function.kind == "select":
            break  # a field of the same name may have another value
        if declared.takes_runs and not transform.function.keeps_records:
            break  # the records of a key would not follow each other if it had another key
        if not all(_has_fields(member, declared.key) for member in members):
            break
        found.insert(0, transform)
        transform = plan.transform(transform.input)
    return tuple(found)


def _has_fields(record_type: RecordType, names: tuple[str, ...]) -> bool:
    return record_type.fields is None or set(names) <= set(record_type.field_names)


def _transforms_after(plan: Plan, operator: Operator) -> tuple[Transform, ...]:
    """Return the transforms that can run where an operator emits its outputs."""
    found: list[Transform] = []
    stream = operator.name
    while plan.reads_of(stream) == 1 and (following := plan.transforms_of(stream)):
        (transform,) = following
        if transform.function.selects_columns and not transform.function.selects_type:
            break  # columns are selected outside of the tasks, without reading a record
        found.append(transform)
        stream = transform.name
    return tuple(found)


def _apart(
    plan: Plan, operator: Operator, stream: str, feeders: list[Chain], strayed: Collection[str]
) -> str | None:
    """Return why an operator cannot be chained to the one that feeds it; None if it can.

    Parameters:
        stream: that it reads, by itself or by the transforms that run in its tasks.
    """
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
    if plan.reads_of(before.name) > 1:
        return f"{before.name} has other consumers"
    if stream != before.name:
        return f"the transforms of the outputs of {before.name} run by themselves"
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
    lines, chained = [f"job {plan.name}"], chains(plan)
    for number, each in enumerate(chained, start=1):
        lines.append(f"pass {number}, fed by {' and '.join(each.streams)}")
        lines += (f"    {line}" for line in _of_pass(plan, each))
    for transform in _transforms_alone(plan, chained):
        lines.append(
            f"{transform.function.kind} {transform.name}: over the rows of {transform.input}"
        )
    return "\n".join(lines)


def _transforms_alone(plan: Plan, chained: list[Chain]) -> Iterator[Transform]:
    """Yield the transforms that run in no task of an operator."""
    inside = [name for each in chained for some in each.transforms for name in some]
    inside += [transform for each in chained for transform in each.after]
    yield from (transform for transform in plan.transforms if transform not in inside)


def _of_pass(plan: Plan, each: Chain) -> Iterator[str]:
    first = each.first
    yield from _reading(plan, each)
    if first.declared.key:
        yield f"shuffled once, by the key group of {', '.join(first.declared.key)}"
    else:
        yield "distributed round robin over the shards, as there is no key"
    if each.apart is not None:
        yield f"a pass of its own: {each.apart}"
    chained = zip((None, *each.operators), each.operators, each.transforms, strict=False)
    for before, operator, transforms in chained:
        behind = "" if before is None else f", in the same tasks as {before.name}"
        for transform in transforms:
            yield _runs_in(transform, operator)
        yield f"{operator.name}: {_calls(operator, is_shuffled=before is None)}{behind}"
    for transform in each.after:
        yield _runs_in(transform, each.last)


def _runs_in(transform: Transform, operator: Operator) -> str:
    return f"{transform.function.kind} {transform.name}: in the same tasks as {operator.name}"


def _reading(plan: Plan, each: Chain) -> Iterator[str]:
    """Yield which columns leave the JVM."""
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
