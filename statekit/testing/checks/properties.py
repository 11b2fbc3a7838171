"""Properties that hold for every process function and all records: the results are the same after
crashes, with other shards, on disk, and with other cuts of the input.

A property compares a run with a disturbed one over the same history, or looks at a run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any, Literal, get_args

from hypothesis import strategies as st
from pydantic import NonNegativeInt, PositiveInt

from statekit.checkpoint.repository import Repository
from statekit.errors import StatekitError, StateTypeError
from statekit.functions.process import Process
from statekit.job.per_key.distinct import DistinctRecords
from statekit.shown import shown, shown_text
from statekit.testing.checks.disturbed import (
    HOSTS,
    Moves,
    Together,
    again,
    arrival,
    crashed,
    is_window,
    on_disk,
    on_several_hosts,
    processes,
    recut,
    replayed,
    rescaling,
    sharded,
    with_all_together,
    with_faults,
)
from statekit.testing.checks.property import Property, RunDifference, alone, compared
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.faults import Fault, safe_faults
from statekit.testing.oracles.against_model import differs_from_model, forgets_changes, is_modelled
from statekit.testing.oracles.read_back import FollowedReplica, misread
from statekit.testing.runs.comparison import have_the_same, in_any_order, in_total
from statekit.testing.runs.growth import grows_without_end
from statekit.testing.runs.observed import Observed
from statekit.testing.runs.on_spark import differs_on_spark
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import AT_ONCE, DRAINS_MAX, Subject

# --------------------------------------------------------------------------------------- one alone


def _errors(subject: Subject, history: History, _: None) -> RunDifference | None:
    outcome = subject.plain_outcome(history)
    if isinstance(outcome, StatekitError):
        return alone(f"an error: {outcome}", Observed())
    return None


def _leftovers(subject: Subject, history: History, _: None) -> RunDifference | None:
    subject.is_cut_short = False
    observed = subject.plain_run(history)
    if observed is None:
        return None
    what = _timers_left(observed)
    if what is None and observed.has_come_to_rest:
        what = _values_left(subject, observed)
    if observed.is_endless or len(observed.epochs) >= len(history) + DRAINS_MAX:
        what = (
            "timers set each other without end: after more than a thousand, each one that fires is "
            "still followed by another"
        )
    return alone(what, observed)


def _spark(subject: Subject, history: History, _: None) -> RunDifference | None:
    if subject.plain_run(history) is None:
        return None
    subject.memory.restore()
    try:
        what = differs_on_spark(subject.job, history)
    except StateTypeError:
        raise  # it cannot be compared
    except StatekitError as error:
        what = f"an error: {error}"
    return None if what is None else RunDifference(what, ("in process", ""), (Observed(), None))


def _plain(subject: Subject, history: History, _: None) -> RunDifference | None:
    if (why := _if_modelled(subject)) is not None:
        raise StateTypeError(f"{subject.name} {why}: leave 'plain Python' out of holds=")
    return _beside(differs_from_model(subject, history), "one shard in memory", "plain Python")


def _queries(subject: Subject, history: History, _: None) -> RunDifference | None:
    if subject.plain_run(history) is None:
        return None
    repository = Repository.in_memory()
    replica = FollowedReplica(subject.job.plan, repository)

    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if 0 < number <= len(history):
            replica.follow(harness.contents())
        return harness

    try:
        observed = subject.run(history, disturb, harness=subject.harness(1, "memory", repository))
    finally:
        replica.close()
    return alone(
        replica.misread or misread(subject.job.plan, repository, observed.contents), observed
    )


def _in_place(subject: Subject, history: History, _: None) -> RunDifference | None:
    return _beside(forgets_changes(subject, history), "as it is", "if changes were written")


def _beside(
    found: tuple[str, Observed, Observed] | None, one: str, other: str
) -> RunDifference | None:
    """Return a difference between two runs with these titles."""
    return None if found is None else RunDifference(found[0], (one, other), found[1:])


def _growth(subject: Subject, history: History, _: None) -> RunDifference | None:
    found = grows_without_end(subject, history)
    if found is None:
        return None
    return alone(str(found), subject.plain_run(history) or Observed())


def _timers_left(observed: Observed) -> str | None:
    """Return the first key that has timers and no state; None if there is none."""
    for number, contents in enumerate(observed.contents):
        for operator, timers in contents.timers.items():
            held = [values for (of, _), values in contents.states.items() if of == operator]
            for key, pending in timers.items():
                if held and not any(key in values for values in held):
                    return (
                        f"key {shown(key)} of {operator} has no state after epoch {number}, and "
                        f"the timers {shown(pending)}"
                    )
    return None


def _values_left(subject: Subject, observed: Observed) -> str | None:
    """Return the first value that has not expired at the end, or rows without a value; None if
    there are none.
    """
    for contents in observed.contents[-1:]:
        for operator, state in subject.expiring_states:
            for key, value in contents.states[operator, state].items():
                if key not in contents.timers[operator]:
                    return (
                        f"state {state!r} of {operator} at the key {shown(key)} is "
                        f"{shown(value)} for ever"
                    )
            if not contents.states[operator, state] and contents.rows[operator, state]:
                rows = contents.rows[operator, state]
                return f"state {state!r} of {operator} has {rows} rows, which have all expired"
    return None


# -------------------------------------------------------------------------------- when they apply


def _if_divisible(subject: Subject) -> str | None:
    return subject.undivided


def _if_cuts_do_not_matter(subject: Subject) -> str | None:
    for operator in subject.job.plan.operators:
        if len(operator.streams) > 1:
            return f"{operator.name} has several inputs, and no order between their records"
    for declared in subject.functions:
        if (why := _emits_per_epoch(declared)) is not None:
            return f"{declared.name} {why}"
    return None


def _emits_per_epoch(declared: Process[Any, Any, Any]) -> str | None:
    """Return the reason why the results of a function depend on epochs; None if they do not."""
    if is_window(declared) or isinstance(declared.traits.made_of, DistinctRecords):
        return None
    if declared.traits.combiner is not None:
        return "emits a result of each key and epoch"
    if declared.takes_runs and not declared.traits.takes_parts:
        return "is called once for each key and epoch"
    if declared.ordered is None and declared.handles_timers:
        return "has timers, which fire between epochs: declare ordered=True"
    ttls = [spec.ttl for spec in declared.states if spec.ttl is not None]
    if declared.ordered is None and any(ttl.clock == "event" for ttl in ttls):
        return "has values that expire between epochs: declare ordered=True"
    return None


def _if_ordered(subject: Subject) -> str | None:
    for declared in subject.functions:
        if declared.traits.calls is not None:
            continue  # an answer does not depend on other records
        if declared.ordered is None and not is_window(declared):
            return f"{declared.name} takes records in the order of arrival: declare ordered=True"
    return None


def _if_modelled(subject: Subject) -> str | None:
    if is_modelled(subject.job.plan):
        return None
    return "has operators without a key or with operator state, which plain Python has no model of"


# --------------------------------------------------------------------------------------- the list


Order = Literal["by time", "by time, backwards"]

_EPOCHS = st.sets(st.integers(0, 4), min_size=1)
_HOST = st.integers(0, HOSTS - 1)

PROPERTIES: tuple[Property, ...] = (
    Property(
        "repeats",
        "After a crash, records that were published before are emitted differently: something "
        "outside of the states is used, such as a clock, random numbers or a file",
        compared(again, lambda _: "the same once more"),
        share=0.5,
    ),
    Property("errors", "A record like this stops the job", _errors),
    Property(
        "restarts",
        "After a crash between two epochs, results are other ones: something is kept outside of "
        "the states, such as in a global variable or a cache",
        compared(crashed, lambda before: f"crashes before the epochs {sorted(before)}"),
        arguments=_EPOCHS,
        takes=set[NonNegativeInt],
    ),
    Property(
        "arrival order",
        "Results depend on the order in which records arrive",
        arrival,
        applies=_if_ordered,
        arguments=st.sampled_from(get_args(Order)),
        takes=Order,
        share=6.0,
    ),
    Property(
        "leftovers",
        "A key without state still has timers, or something stays for ever: delete timers with "
        "ctx.timers.delete or ctx.timers.replace, and states with clear()",
        _leftovers,
    ),
    Property(
        "growth",
        "What a key has in a state grows for ever: give the state a TTL, clear it with a timer, or "
        "keep the last records only. If another record clears it, some keys never get that record",
        _growth,
        share=0.2,
    ),
    Property(
        "epochs",
        "Results depend on how Spark cuts the input into micro-batches",
        compared(
            recut,
            lambda sizes: f"epochs of {[*sizes, 'all others']} records",
            in_total,
            when_late=False,
            every=AT_ONCE,
        ),
        applies=_if_cuts_do_not_matter,
        arguments=st.lists(st.integers(0, 5), max_size=8),
        takes=list[NonNegativeInt],
        share=2.0,
    ),
    Property(
        "plain Python",
        "Results are other ones than with plain values in the place of states and timers: a fault "
        "of statekit, or a function that looks at the classes of its states",
        _plain,
        applies=_if_modelled,
    ),
    Property(
        "in place",
        "A value that was read from a state is changed and not written, so that the change is lost "
        "where it would matter: write it with update(), or change a copy",
        _in_place,
        applies=_if_modelled,
        share=0.5,
    ),
    Property(
        "replays",
        "An epoch that is run again after a crash has other results than those that a sink may "
        "have published",
        compared(replayed, lambda before: f"crashes at the end of the epochs {sorted(before)}"),
        arguments=_EPOCHS,
        takes=set[NonNegativeInt],
    ),
    Property(
        "parallelism",
        "Results depend on how many shards there are: something of one key is used for another",
        compared(sharded, lambda shards: f"{shards} shards", in_any_order),
        arguments=st.integers(2, 7),
        takes=PositiveInt,
    ),
    Property(
        "rescaling",
        "Results change when the job is rescaled",
        rescaling,
        applies=_if_divisible,
        arguments=st.lists(st.integers(1, 5), min_size=1, max_size=5),
        takes=list[PositiveInt],
    ),
    Property(
        "faults",
        "After errors of the store or of a disk, results are other ones",
        compared(with_faults, lambda planned: f"a store and a disk with the faults {planned}"),
        arguments=safe_faults(most=3, until=60),
        takes=list[Fault],
    ),
    Property(
        "hosts",
        "Results depend on which host runs a shard: a local copy is stale",
        compared(on_several_hosts, lambda moves: f"two hosts: {moves}"),
        arguments=st.tuples(
            st.lists(_HOST, min_size=2, max_size=5), st.sets(st.integers(0, 4), max_size=2)
        ),
        takes=Moves,
        share=0.1,
    ),
    Property(
        "together",
        "Results are other ones after errors of a store or a disk, with other shards and hosts",
        compared(with_all_together, lambda drawn: f"all together: {drawn}", in_any_order),
        arguments=st.tuples(
            safe_faults(most=3, until=100),
            st.lists(st.integers(1, 4), min_size=1, max_size=5),
            st.lists(_HOST, min_size=1, max_size=5),
        ),
        takes=Together,
        share=0.1,
    ),
    Property(
        "processes",
        "Each worker process has other results: they depend on what a process keeps outside of the "
        "states, random numbers, the clock or the time zone of the computer, hash(), or the order "
        "of a set",
        processes,
        share=0.4,
        is_confirmed=False,
    ),
    Property(
        "queries",
        "What queries and SQL read of a checkpoint is not what the function has",
        _queries,
        share=0.1,
    ),
    Property(
        "disk",
        "Results depend on whether values were stored: a value is not what is read back of it",
        compared(on_disk, lambda _: "one shard in RocksDB"),
        share=0.2,
    ),
    Property(
        "spark",
        "Results on Spark are other ones than in process",
        _spark,
        applies=lambda _: "runs on Spark: only if it is asked for",
        share=0.05,
        is_shrunk=False,
        is_confirmed=False,
    ),
)
"""The properties that find most come first: `repeats` and `restarts`, which find values that are
kept outside of states.
"""


# ------------------------------------------------------------------------- relations of the user

Relation = Callable[..., Any]


def own_properties(invariant: Relation | None, model: Relation | None) -> Iterator[Property]:
    """Yield a property for each function that the user gave to a check.

    Raises:
        StateTypeError: one is no function.
    """
    for name, given, find, means in (
        ("invariant", invariant, _broken, "What has to hold for all records does not"),
        ("model", model, _unlike, "The model emits other records"),
    ):
        if given is None:
            continue
        if not callable(given):
            raise StateTypeError(f"{name}={shown(given, 100)}: give a function")
        found = partial(find, given)
        yield Property(name, means, found, is_confirmed=False, given=given)


def _broken(
    invariant: Relation, subject: Subject, history: History, _: None
) -> RunDifference | None:
    """Return the difference if an invariant raises an AssertionError or returns False; otherwise
    None.
    """
    observed = subject.plain_run(history)
    if observed is None:
        return None
    try:
        holds = invariant(_records(history), _emitted(observed)) if observed.epochs else True
    except AssertionError as error:
        return alone(f"the invariant fails: {shown_text(error)}", observed)
    return (
        None if holds is None or holds else alone(f"the invariant returns {shown(holds)}", observed)
    )


def _unlike(model: Relation, subject: Subject, history: History, _: None) -> RunDifference | None:
    """Return the difference if the records of a sink, in any order, are not those of a model;
    otherwise None.
    """
    observed = subject.plain_run(history)
    if observed is None or not observed.epochs:
        return None
    emitted, expected = _emitted(observed), model(_records(history))
    if not isinstance(emitted, dict):
        emitted, expected = {"outputs": emitted}, {"outputs": expected}
    for sink, records in emitted.items():
        if not have_the_same(records, list(expected[sink])):
            what = f"sink {sink!r}: the model emits {shown(list(expected[sink]), 500)}"
            return alone(what, observed)
    return None


def _records(history: History) -> Any:
    """Return the records of a history in the order of arrival; by source if there are several."""
    names = dict.fromkeys(name for epoch in history for name in epoch)
    by_source = {name: [one for epoch in history for one in epoch.get(name, ())] for name in names}
    return next(iter(by_source.values()), []) if len(by_source) < 2 else by_source


def _emitted(observed: Observed) -> Any:
    """Return copies of all emitted records; by sink if there are others than those of a single
    function.
    """
    by_sink = {
        sink: deepcopy([record for epoch in observed.epochs for record in epoch[sink]])
        for sink in observed.epochs[0]
    }
    return by_sink["outputs"] if by_sink.keys() <= {"outputs", "late", "errors"} else by_sink
