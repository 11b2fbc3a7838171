"""Passes: the operators that share one shuffle, and the reasons why others do not.

An operator that is fed by one other operator with the same key can run where its records are
emitted, if the records that are emitted for a key have that key. statekit cannot know this. It
assumes it if the key fields have the same names. A worker that finds a record of another shard
fails the epoch, which then runs again without the chain.

Operators that read the same stream with the same key share a shuffle, too: each task gives its rows
to one after the other.

Transforms run in the tasks of the operator that reads their outputs, or of the one that feeds them,
under the same assumption.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
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
        emits_errors: whether the failed records of the last one are consumed.
    """

    operators: tuple[Operator, ...]
    transforms: tuple[tuple[Transform, ...], ...]
    after: tuple[Transform, ...] = ()
    apart: str | None = None
    emits_errors: bool = False

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
        """Names of the streams that the chain reads."""
        before = self.transforms[0]
        return (before[0].input,) if before else self.first.streams

    @property
    def shuffled(self) -> Records:
        """Type, or types, of the records that are shuffled."""
        before = self.transforms[0]
        return before[0].function.record_type if before else self.first.declared.record_type

    @property
    def shares_rows(self) -> bool:
        """True if the first operator can share the rows of one stream with the first operators of
        other chains: its records are shuffled by a key, uncombined, and of one type.
        """
        first = self.first
        is_plain = len(self.streams) == 1 and len(self.shuffled.members) == 1
        return is_plain and bool(first.declared.key) and first.declared.traits.combiner is None

    @property
    def output_type(self) -> AnyOutput | None:
        """Type of the outputs; None if the chain emits nothing."""
        return self.after[-1].function.output_type if self.after else self.last.declared.output_type

    @property
    def output(self) -> str:
        """Name of the stream that the chain emits."""
        return self.after[-1].name if self.after else self.last.name


@dataclass(frozen=True)
class Pass:
    """Chains whose first operators get the same rows, in the same tasks.

    Parameters:
        chains: the chains. They read one stream, with one key, if there are several.
    """

    chains: tuple[Chain, ...]

    @property
    def first(self) -> Operator:
        """The operator that identifies the tasks of the pass."""
        return self.chains[0].first

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the streams that the pass reads."""
        return self.chains[0].streams

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All operators of the pass."""
        return tuple(operator for chain in self.chains for operator in chain.operators)


def passes(plan: Plan, strayed: Collection[str] = (), alone: Collection[str] = ()) -> list[Pass]:
    """Return all operators of a plan in passes, each pass after the ones that feed it.

    Parameters:
        strayed: operators that have received records with other keys.
        alone: operators that get rows of their own.
    """
    by_rows: dict[Hashable, list[Chain]] = {}
    for chain in chains(plan, strayed):
        first = chain.first
        shares = chain.shares_rows and first.name not in alone
        rows = (chain.streams, first.declared.key) if shares else first.name
        by_rows.setdefault(rows, []).append(chain)
    return [Pass(tuple(chained)) for chained in by_rows.values()]


def passes_before(plan: Plan, each: Pass, among: Iterable[Pass]) -> list[Pass]:
    """Return the passes whose outputs a pass needs directly."""
    needed = plan.operators_before(each.streams)
    return [before for before in among if any(chain.last.name in needed for chain in before.chains)]


def chains(plan: Plan, strayed: Collection[str] = ()) -> list[Chain]:
    """Return all operators of a plan in chains, each chain after the ones that feed it.

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
    return [
        replace(
            each,
            after=_transforms_after(plan, each.last),
            emits_errors=plan.wants_errors(each.last),
        )
        for each in chained
    ]


def _transforms_before(
    plan: Plan, operator: Operator, strayed: Collection[str]
) -> tuple[Transform, ...]:
    """Return the transforms that can run in the tasks of the operator that receives their outputs.

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
        if not plan.is_operator(plan.origin_of(transform.name)) and _is_of_columns(plan, transform):
            break  # the JVM drops rows before they are shuffled
        if declared.takes_runs and not transform.function.keeps_records:
            break  # the records of a key would not follow each other if it had another key
        if not all(_has_fields(member, declared.key) for member in members):
            break
        found.insert(0, transform)
        transform = plan.transform(transform.input)
    return tuple(found)


def _is_of_columns(plan: Plan, transform: Transform | None) -> bool:
    """Return whether a transform, and all that feed it, follow from columns alone."""
    while transform is not None and transform.function.selects_columns:
        transform = plan.transform(transform.input)
    return transform is None


def _has_fields(record_type: RecordType, names: tuple[str, ...]) -> bool:
    return record_type.fields is None or set(names) <= set(record_type.field_names)


def _transforms_after(plan: Plan, operator: Operator) -> tuple[Transform, ...]:
    """Return the transforms that can run in the tasks of the operator that feeds them."""
    found: list[Transform] = []
    stream = operator.name
    if plan.wants_errors(operator):
        return ()
    while plan.reads_of(stream) == 1 and (following := plan.transforms_of(stream)):
        (transform,) = following
        function = transform.function
        if function.selects_columns and not function.selects_type and function.kind != "filter":
            break  # columns are selected outside of the tasks, without reading a record
        found.append(transform)
        stream = transform.name
    return tuple(found)


def _apart(
    plan: Plan, operator: Operator, stream: str, feeders: list[Chain], strayed: Collection[str]
) -> str | None:
    """Return the reason why an operator cannot be chained to the one that feeds it; None if it can.

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
    if plan.wants_errors(before):
        return f"the failed records of {before.name} are wanted"
    if plan.reads_of(before.name) > 1:
        return f"{before.name} has other consumers"
    if stream != before.name:
        return f"the transforms of the outputs of {before.name} run by themselves"
    if declared.traits.takes_columns and declared.traits.fires is None:
        return "its records are combined before they are shuffled"
    if declared.takes_runs and not declared.traits.takes_parts:
        return "it is called with all records of a key at once"
    if plan.wants_late(operator):
        return "its late records are wanted"
    return None


def _key(key: tuple[str, ...]) -> str:
    return ", ".join(key) or "nothing"
