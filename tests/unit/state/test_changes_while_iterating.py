"""A map or a list that is changed while it is iterated over: iteration sees it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import statekit as sk
from statekit.testing import Harness
from tests.support.pairwise import with_pairs


class Step(NamedTuple):
    k: str
    action: str


Scores = sk.MapState[int, list[int]]
ITERATIONS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "iter": iter,
    "keys": lambda scores: iter(scores.keys()),
    "values": lambda scores: iter(scores.values()),
    "items": lambda scores: iter(scores.items()),
    "scan": lambda scores: scores.scan(),
}
SEEN: dict[str, list[Any]] = {
    "iter": [1, 2, 3, 4],
    "keys": [1, 2, 3, 4],
    "values": [[1], [2], [3], [4]],
    "items": [(1, [1]), (2, [2]), (3, [3]), (4, [4])],
    "scan": [(1, [1]), (2, [2]), (3, [3]), (4, [4])],
}


def _replace_all(scores: Any) -> None:
    scores.clear()
    scores.update({2: [20], 9: [90]})


CHANGES: dict[str, tuple[Callable[[Any], object], dict[int, list[int]]]] = {
    "clear": (lambda scores: scores.clear(), {}),
    "delete one ahead": (lambda scores: scores.pop(3), {1: [1], 2: [2], 4: [4]}),
    "delete one behind": (lambda scores: scores.pop(1), {2: [2], 3: [3], 4: [4]}),
    "set one ahead": (lambda scores: scores.update({3: [30]}), {1: [1], 2: [2], 3: [30], 4: [4]}),
    "add one ahead": (
        lambda scores: scores.update({5: [5]}),
        {1: [1], 2: [2], 3: [3], 4: [4], 5: [5]},
    ),
    "replace all": (_replace_all, {2: [20], 9: [90]}),
}


@with_pairs(
    backend=["memory", "rocksdb"],
    way=ITERATIONS,
    change=CHANGES,
    held=["stored", "pending", "both"],
    begun=["before the first", "after the first"],
)
def test_a_map_is_iterated_over_as_it_was_when_iteration_began(
    backend: Any, way: str, change: str, held: str, begun: str
) -> None:
    make_change, after = CHANGES[change]
    found: list[Any] = []

    @sk.process(key="k")
    def keep(step: Step, scores: Scores) -> None:
        if step.action == "odd":
            scores.update({1: [1], 3: [3]})
        if step.action == "even":
            scores.update({2: [2], 4: [4]})
        if step.action == "iterate":
            iteration = ITERATIONS[way](scores)
            if begun == "after the first":
                found.append(next(iteration))
            make_change(scores)
            found.extend(iteration)

    harness = Harness(keep, backend=backend)
    steps = [Step("a", action) for action in ("odd", "even", "iterate")]
    at_once = {"stored": 1, "pending": 3, "both": 2}[held]
    for step in steps[:-at_once]:
        harness.send(step)
    harness.send(*steps[-at_once:])
    assert found == SEEN[way]
    assert harness.state("scores", "a") == after


READS: dict[str, Callable[[Any], Any]] = {
    "iter": lambda listed: listed,
    "reversed": reversed,
    "slice": lambda listed: listed[:],
    "get": lambda listed: listed.get(),
}
LIST_CHANGES: dict[str, tuple[Callable[[Any], object], list[int]]] = {
    "append": (lambda listed: listed.append(9), [1, 2, 3, 4, 9]),
    "clear": (lambda listed: listed.clear(), []),
    "update": (lambda listed: listed.update([7, 8]), [7, 8]),
    "clear and append": (lambda listed: (listed.clear(), listed.append(7)), [7]),
}


@with_pairs(
    backend=["memory", "rocksdb"],
    way=READS,
    change=LIST_CHANGES,
    held=["stored", "pending", "both"],
    ttl=[None, sk.TTL("1 hour", refresh="read")],
)
def test_a_list_is_iterated_over_as_it_was_when_iteration_began(
    backend: Any, way: str, change: str, held: str, ttl: sk.TTL | None
) -> None:
    make_change, after = LIST_CHANGES[change]
    found: list[int] = []
    declared: Any = sk.ListState[int] if ttl is None else Annotated[sk.ListState[int], ttl]

    def keep(step: Step, listed: Any) -> None:
        if step.action == "first":
            listed.extend([1, 2])
        if step.action == "second":
            listed.extend([3, 4])
        if step.action == "iterate":
            for number, element in enumerate(READS[way](listed)):
                if number == 1:
                    make_change(listed)
                    assert listed[0] == after[0] if after else not listed
                found.append(element)

    keep.__annotations__ = {"step": Step, "listed": declared, "return": None}
    harness = Harness(sk.process(key="k")(keep), backend=backend)
    steps = [Step("a", action) for action in ("first", "second", "iterate")]
    at_once = {"stored": 1, "pending": 3, "both": 2}[held]
    for step in steps[:-at_once]:
        harness.send(step)
    harness.send(*steps[-at_once:])
    assert found == ([4, 3, 2, 1] if way == "reversed" else [1, 2, 3, 4])
    assert harness.state("listed", "a") == after
