"""Properties that hold for every process function and all records: the results are the same after
crashes, with other shards, on disk, and with other cuts of the input.

A property compares a run with a disturbed one over the same history, or looks at a run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pydantic import NonNegativeInt, PositiveInt

from statekit.checkpoint.repository import Repository
from statekit.errors import StatekitError, StateTypeError
from statekit.functions.process import Process
from statekit.shown import shown
from statekit.testing.against_model import differs_from_model, forgets_changes, is_modelled
from statekit.testing.comparison import (
    Compare,
    emitted_in_any_order,
    exactly,
    in_any_order,
    in_total,
    is_same,
)
from statekit.testing.faults import Fault, Faults, FaultyCopies, faulty, safe_faults
from statekit.testing.growth import grows_without_end
from statekit.testing.job_harness import JobHarness
from statekit.testing.new_processes import (
    PLACES,
    called_in_new_process,
    found_there,
    run_in_many,
    run_there,
)
from statekit.testing.on_spark import differs_on_spark
from statekit.testing.redistribution import check_redistribution, wrong_pieces
from statekit.testing.restarts import with_restarts
from statekit.testing.subject import DRAINS_MAX, History, Observed, Subject
from statekit.working_copy.copies import MemoryCopies

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class RunDifference(NamedTuple):
    """A difference between two runs that should be the same, or an error in one run.

    Parameters:
        what: the difference, as text.
        titles: the titles of the two runs.
        runs: their results; the second may be missing.
    """

    what: str
    titles: tuple[str, str]
    runs: tuple[Observed, Observed | None]


@dataclass(frozen=True)
class Property:
    """A property that holds for every history.

    Parameters:
        name: the name, by which it is excused.
        means: the consequence for a job if it does not hold, in a sentence.
        applies: returns the reason why the property is not checked for a subject; None if it is.
        arguments: returns a strategy of disturbances of a run.
        find: returns the difference for a history and an argument; None if there is none.
        takes: the annotation of the argument.
        share: the share of the usual number of histories: some properties take longer.
        is_shrunk: whether a history that fails is made smaller.
        is_confirmed: whether a history that fails here has to fail in new processes, too.
        given: the function of the user that the property calls, if any.
    """

    name: str
    means: str
    applies: Callable[[Subject], str | None]
    arguments: Callable[[], SearchStrategy[Any]]
    find: Callable[[Subject, History, Any], RunDifference | None]
    takes: Any = None
    share: float = 1.0
    is_shrunk: bool = True
    is_confirmed: bool = True
    given: Callable[..., Any] | None = None


# ---------------------------------------------------------------------------------------- disturbed


def compared(
    disturbed: Callable[[Subject, History, Any], Observed],
    title: Callable[[Any], str],
    compare: Compare = exactly,
    *,
    when_late: bool = True,
    stands: bool = False,
) -> Callable[[Subject, History, Any], RunDifference | None]:
    """Return a function that compares a run with a disturbed one.

    Parameters:
        title: returns the title of the disturbed run, for its argument.
        when_late: whether the runs are compared if records were late.
        stands: whether processing time stands still until the last record.
    """

    def find(subject: Subject, history: History, argument: Any) -> RunDifference | None:
        one = subject.plain_run(history, stands=stands)
        if one is None:
            return None  # for the property that there are no errors
        second = partial(disturbed, subject, history, argument)
        return _between(one, second, title(argument), compare, when_late=when_late)

    return find


def _between(
    one: Observed,
    second: Callable[[], Observed],
    title: str,
    compare: Compare = exactly,
    *,
    when_late: bool = True,
) -> RunDifference | None:
    """Return the difference between a plain run and a second one.

    Parameters:
        second: runs the second run.
        title: the title of the second run.
        when_late: as for `compared`.
    """
    titles = "one shard in memory", title
    try:
        other = second()
    except StatekitError as error:
        return RunDifference(f"the second run fails: {error}", titles, (one, None))
    if not when_late and (one.late or other.late):
        return None
    what = compare(one, other)
    return None if what is None else RunDifference(what, titles, (one, other))


def _again(subject: Subject, history: History, _: None) -> Observed:
    return subject.run(history)


def _crashed(subject: Subject, history: History, before: set[int]) -> Observed:
    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if number in before:
            harness.crash()
        return harness

    return subject.run(history, disturb)


def _replayed(subject: Subject, history: History, before: set[int]) -> Observed:
    """Run some epochs twice, as after a crash right before their commit. The result has the records
    of the first time, which a sink may have published.
    """

    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if number in before and number < len(history):
            first.append((number, harness.attempt(history[number])))
        return harness

    first: list[tuple[int, dict[str, list[Any]]]] = []
    observed = subject.run(history, disturb)
    for number, emitted in first:
        observed.epochs[number] = emitted
    return observed


def _processes(subject: Subject, history: History, _: None) -> RunDifference | None:
    """Compare two other processes with each other. This process is neither of them: its hashes
    differ at each start, so that a difference would come and go.
    """
    if subject.not_sent is not None:
        return alone(subject.not_sent, Observed())
    subject.count_run(history)
    first, second = PLACES
    titles = first.title, second.title
    one = _outcome(first.call, run_there, subject.pickled, history)
    other = _outcome(second.call, run_in_many, subject.pickled, history)
    if isinstance(one, StatekitError):
        if not isinstance(other, StatekitError):
            return RunDifference(f"the first run fails: {one}", titles, (Observed(), other))
        subject.failed.append(one)
    elif isinstance(other, StatekitError):
        return RunDifference(f"the second run fails: {other}", titles, (one, None))
    elif (what := exactly(one, other)) is not None:
        return RunDifference(what, titles, (one, other))
    return None


def _outcome(call: Call, *arguments: Any) -> Observed | StatekitError:
    """Return the result of a run in another process, or its error."""
    try:
        result: Observed = _called(call, *arguments)
    except NotThereError:
        raise
    except StatekitError as error:
        return error
    return result


class NotThereError(StateTypeError):
    """The error that another process cannot import the function."""


Call = Callable[..., Any]
"""A function that calls a function with arguments in another process."""


def _called(call: Call, *arguments: Any) -> Any:
    """Call a function in another process, and return its result.

    Raises:
        NotThereError: the process cannot import a module to which the job refers.
    """
    try:
        return call(*arguments)
    except ImportError as error:
        raise NotThereError(
            f"another process cannot import what the function uses ({error}), and neither can a "
            "worker of Spark: put the directory of the module on PYTHONPATH, or install the module"
        ) from error


def found_in_new_processes(
    subject: Subject, checked: Property, history: History, argument: Any
) -> RunDifference | None:
    """Return the difference for a history in processes that crashes kill; None if there is none.

    Raises:
        NotThereError: another process cannot have the job.
    """
    arguments = subject.pickled, checked.find, history, argument
    found: RunDifference | None = _called(called_in_new_process, found_there, *arguments)
    return found


def _on_disk(subject: Subject, history: History, _: None) -> Observed:
    return subject.run(history, harness=subject.harness(1, "rocksdb"))


def _sharded(subject: Subject, history: History, shards: int) -> Observed:
    return subject.run(history, harness=subject.harness(shards))


def _rescaled(subject: Subject, history: History, shards: list[int], wrong: list[str]) -> Observed:
    """Run with other shards in each epoch.

    Parameters:
        wrong: gets a message for each operator state that is wrong after a rescale.
    """

    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if number < len(shards) and shards[number] != harness.parallelism:
            before = _local_states(subject, harness)
            harness.rescale(shards[number])
            after = _local_states(subject, harness)
            wrong.extend(_misplaced(subject, before, after, number))
        return harness

    return subject.run(history, disturb)


def _local_states(subject: Subject, harness: JobHarness) -> dict[tuple[str, str], list[Any]]:
    """Return the operator states of all shards, by operator and name."""
    return {
        (operator, spec.name): harness.operator_state(operator, spec.name)
        for operator, spec in subject.local_states
    }


def _misplaced(
    subject: Subject,
    before: dict[tuple[str, str], list[Any]],
    after: dict[tuple[str, str], list[Any]],
    number: int,
) -> Iterator[str]:
    """Yield a message for each operator state that is wrong after a rescale.

    Parameters:
        before, after: the operator states of all shards.
        number: the number of the epoch that follows.
    """
    for operator, spec in subject.local_states:
        assert spec.redistribute is not None
        held, moved = before[operator, spec.name], after[operator, spec.name]
        if spec.default is not None and any(is_same(spec.default, each) for each in held):
            continue  # of a default nobody knows whether it was stored
        if (what := wrong_pieces(spec.redistribute, held, moved)) is not None:
            yield f"operator state {spec.name!r} of {operator} before epoch {number}: {what}"


def _rescaling(subject: Subject, history: History, shards: list[int]) -> RunDifference | None:
    """Compare a history with one that is rescaled between epochs. The operator states of several
    shards differ from those of one: after a rescale, each element must be in the shard that the
    rule gives. The states of one shard must survive a split and a merge.
    """
    one, wrong = subject.plain_run(history), list[str]()
    if one is None:
        return None
    second = partial(_rescaled, subject, history, shards, wrong)
    found = _between(one, second, f"shards by epoch: {shards}", in_any_order)
    return found or alone((*wrong, _not_redistributed(subject, one, shards))[0], one)


def _not_redistributed(subject: Subject, one: Observed, shards: list[int]) -> str | None:
    """Return the first operator state that a split into so many shards and a merge change; None if
    there is none.
    """
    into = [each for each in shards if each > 1]
    for operator, name, hooks in subject.redistributed if into else ():
        values = [each.operator_states[operator, name][0] for each in one.contents]
        if held := [value for value in values if value is not None]:
            try:
                check_redistribution(hooks, held, into)
            except AssertionError as error:
                return f"operator state {name!r} of {operator}: {error}"
    return None


def _recut(subject: Subject, history: History, sizes: list[int]) -> Observed:
    """Run the same records in other epochs."""
    waiting: dict[str, Iterator[Any]] = {}
    for source in subject.job.sources:
        waiting[source.name] = iter(
            [record for epoch in history for record in epoch.get(source.name, ())]
        )
    cut: History = []
    for size in [*sizes, None]:
        cut.append({name: list(islice(records, size)) for name, records in waiting.items()})
    return subject.run(cut, stands=True)


def _reordered(subject: Subject, history: History, order: str) -> Observed:
    """Run the records of each epoch in another order. Records of the same instant keep theirs."""
    return subject.run(
        [
            {name: _moved(subject, name, records, order) for name, records in epoch.items()}
            for epoch in history
        ]
    )


def _arrival(subject: Subject, history: History, order: str) -> RunDifference | None:
    """Compare a history with one in another order. The stored records of a window may be in any
    order, as long as its result is the same.
    """
    only_windows = all(map(_is_window, subject.functions))
    compare = emitted_in_any_order if only_windows else in_any_order
    find = compared(
        _reordered, lambda order: f"records of epochs {order}", compare, when_late=False
    )
    return find(subject, history, order)


def _moved(subject: Subject, source: str, records: list[Any], order: str) -> list[Any]:
    """Return the records of a source in another order."""
    time_of = subject.times_of(source)
    by_time = sorted(records, key=time_of)
    if order == "by time":
        return by_time
    found: list[Any] = []
    for _, same in groupby(by_time, time_of):
        found[:0] = same
    return found


def _with_faults(subject: Subject, history: History, planned: list[Fault]) -> Observed:
    """Run on a store and on working copies that fail."""
    faults, observed = Faults(*planned, lasting=True), Observed()
    store = faulty(Repository.in_memory(), faults)

    def started() -> JobHarness:
        return subject.harness(1, FaultyCopies(MemoryCopies(), faults), store)

    harness: JobHarness | None = None
    for step in subject.steps(history, observed):
        harness = with_restarts(step, started, harness, observed)
    return observed


# --------------------------------------------------------------------------------------- one alone


def _errors(subject: Subject, history: History, _: None) -> RunDifference | None:
    outcome = subject.plain_outcome(history)
    if isinstance(outcome, StatekitError):
        return alone(f"an error: {outcome}", Observed())
    return None


def alone(what: str | None, observed: Observed) -> RunDifference | None:
    """Return the difference for an error in a single run; None if there is no error."""
    return (
        None if what is None else RunDifference(what, ("one shard in memory", ""), (observed, None))
    )


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
                        "the "
                        f"timers {shown(pending)}"
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


def always(_: Subject) -> str | None:
    """Return None: the property is checked for every subject."""
    return None


def _if_divisible(subject: Subject) -> str | None:
    return subject.undivided


def _if_cuts_do_not_matter(subject: Subject) -> str | None:
    for operator in subject.job.operators:
        if len(operator.streams) > 1:
            return f"{operator.name} has several inputs, and no order between their records"
    for declared in subject.functions:
        if (why := _emits_per_epoch(declared)) is not None:
            return f"{declared.name} {why}"
    return None


def _emits_per_epoch(declared: Process[Any, Any, Any]) -> str | None:
    """Return the reason why the results of a function depend on epochs; None if they do not."""
    if _is_window(declared):
        return None
    if declared.traits.combiner is not None:
        return "emits a result of each key and epoch"
    if declared.takes_runs:
        return "is called once for each key and epoch"
    if declared.ordered is None and declared.handles_timers:
        return "has timers, which fire between epochs: declare ordered=True"
    ttls = [spec.ttl for spec in declared.states if spec.ttl is not None]
    if declared.ordered is None and any(ttl.clock == "event" for ttl in ttls):
        return "has values that expire between epochs: declare ordered=True"
    return None


def _if_ordered(subject: Subject) -> str | None:
    for declared in subject.functions:
        if declared.ordered is None and not _is_window(declared):
            return f"{declared.name} takes records in the order of arrival: declare ordered=True"
    return None


def _if_modelled(subject: Subject) -> str | None:
    if is_modelled(subject.job):
        return None
    return "has no process function with a key and without operator state"


def _is_window(declared: Process[Any, Any, Any]) -> bool:
    """Return whether a function is a window that fires once."""
    return declared.traits.fires is not None


# --------------------------------------------------------------------------------------- the list


def nothing() -> SearchStrategy[Any]:
    """Return the strategy of a property whose run is not disturbed."""
    from hypothesis import strategies as st

    return st.none()


def _epochs() -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    return st.sets(st.integers(0, 4), min_size=1)


def _shards() -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    return st.integers(2, 7)


def _shards_by_epoch() -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    return st.lists(st.integers(1, 5), min_size=1, max_size=5)


def _sizes() -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    return st.lists(st.integers(0, 5), max_size=8)


Order = Literal["by time", "by time, backwards"]


def _orders() -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    return st.sampled_from(get_args(Order))


PROPERTIES: tuple[Property, ...] = (
    Property(
        "repeats",
        "After a crash, records that were published before are emitted differently: something "
        "outside of the states is used, such as a clock, random numbers or a file",
        always,
        nothing,
        compared(_again, lambda _: "the same once more"),
        share=0.5,
    ),
    Property("errors", "A record like this stops the job", always, nothing, _errors),
    Property(
        "restarts",
        "After a crash between two epochs, results are other ones: something is kept outside of "
        "the states, such as in a global variable or a cache",
        always,
        _epochs,
        compared(_crashed, lambda before: f"crashes before the epochs {sorted(before)}"),
        takes=set[NonNegativeInt],
    ),
    Property(
        "arrival order",
        "Results depend on the order in which records arrive",
        _if_ordered,
        _orders,
        _arrival,
        takes=Order,
        share=6.0,
    ),
    Property(
        "leftovers",
        "A key without state still has timers, or something stays for ever: delete timers with "
        "ctx.timers.delete or ctx.timers.replace, and states with clear()",
        always,
        nothing,
        _leftovers,
    ),
    Property(
        "growth",
        "What a key has in a state grows for ever: give the state a TTL, clear it with a timer, or "
        "keep the last records only. If another record clears it, some keys never get that record",
        always,
        nothing,
        _growth,
        share=0.2,
    ),
    Property(
        "epochs",
        "Results depend on how Spark cuts the input into micro-batches",
        _if_cuts_do_not_matter,
        _sizes,
        compared(
            _recut,
            lambda sizes: f"epochs of {[*sizes, 'all others']} records",
            in_total,
            when_late=False,
            stands=True,
        ),
        takes=list[NonNegativeInt],
        share=2.0,
    ),
    Property(
        "plain Python",
        "Results are other ones than with plain values in the place of states and timers: a fault "
        "of statekit, or a function that looks at the classes of its states",
        _if_modelled,
        nothing,
        _plain,
    ),
    Property(
        "in place",
        "A value that was read from a state is changed and not written, so that the change is lost "
        "where it would matter: write it with update(), or change a copy",
        _if_modelled,
        nothing,
        _in_place,
        share=0.5,
    ),
    Property(
        "replays",
        "An epoch that is run again after a crash has other results than those that a sink may "
        "have published",
        always,
        _epochs,
        compared(_replayed, lambda before: f"crashes at the end of the epochs {sorted(before)}"),
        takes=set[NonNegativeInt],
    ),
    Property(
        "parallelism",
        "Results depend on how many shards there are: something of one key is used for another",
        always,
        _shards,
        compared(_sharded, lambda shards: f"{shards} shards", in_any_order),
        takes=PositiveInt,
    ),
    Property(
        "rescaling",
        "Results change when the job is rescaled",
        _if_divisible,
        _shards_by_epoch,
        _rescaling,
        takes=list[PositiveInt],
    ),
    Property(
        "faults",
        "After errors of the store or of a disk, results are other ones",
        always,
        partial(safe_faults, most=3, until=60),
        compared(_with_faults, lambda planned: f"a store and a disk with the faults {planned}"),
        takes=list[Fault],
    ),
    Property(
        "processes",
        "Each worker process has other results: they depend on what a process keeps outside of the "
        "states, random numbers, the clock or the time zone of the computer, hash(), or the order "
        "of a set",
        always,
        nothing,
        _processes,
        share=0.4,
        is_confirmed=False,
    ),
    Property(
        "disk",
        "Results depend on whether values were stored: a value is not what is read back of it",
        always,
        nothing,
        compared(_on_disk, lambda _: "one shard in RocksDB"),
        share=0.2,
    ),
    Property(
        "spark",
        "Results on Spark are other ones than in process",
        lambda _: "runs on Spark: only if it is asked for",
        nothing,
        _spark,
        share=0.05,
        is_shrunk=False,
        is_confirmed=False,
    ),
)
"""The properties that find most come first: `repeats` and `restarts`, which find values that are
kept outside of states.
"""
