"""Actions of Spark, which run concurrently. Each runs after the actions that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread

from pyspark import InheritableThread
from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

AT_ONCE = 8
"""The maximum number of concurrent actions. Their tasks share the cores: more actions only keep
cores busy while others are planned, or end.
"""


@dataclass(frozen=True)
class Action:
    """An action of Spark.

    Parameters:
        name: no other action has it.
        run: runs it.
        after: the names of the actions that it needs.
    """

    name: Hashable
    run: Callable[[], None]
    after: frozenset[Hashable] = frozenset()


def run_all(actions: Sequence[Action], at_once: int = AT_ONCE) -> None:
    """Run all actions, and return once all have ended.

    After an error no further action begins.

    Parameters:
        actions: each comes after those that it needs.
        at_once: how many run at a time.

    Raises:
        Exception: the error of the first action that failed, in the order in which they are given.
    """
    if len(actions) == 1:
        actions[0].run()
        return
    ended: SimpleQueue[tuple[Action, BaseException | None]] = SimpleQueue()
    waiting, running = list(actions), 0
    errors: dict[Hashable, BaseException] = {}
    done: set[Hashable] = set()

    def run(action: Action) -> None:
        try:
            action.run()
        except BaseException as error:  # noqa: BLE001  it is raised again below
            ended.put((action, error))
        else:
            ended.put((action, None))

    while running or (waiting and not errors):
        ready = [] if errors else [action for action in waiting if action.after <= done]
        for action in ready[: at_once - running]:
            waiting.remove(action)
            # It has the job group of this thread, by which a stream that is stopped ends its jobs.
            # Spark Connect has no such groups, and no streams here.
            kind = Thread if is_remote() else InheritableThread
            kind(target=run, args=(action,), daemon=True).start()
            running += 1
        action, error = ended.get()
        running -= 1
        done.add(action.name)
        if error is not None:
            errors[action.name] = error
    for action in actions:
        if action.name in errors:
            raise errors[action.name]


def compute(frame: DataFrame) -> None:
    """Make Spark compute all rows of a frame. Their columns are not read."""
    frame.selectExpr("true as computed").write.format("noop").mode("append").save()
