"""Types that change between runs: read as they are, converted by hooks, or refused at start."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import cloudpickle
import pytest

import statekit as sk
from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.repository import Repository
from statekit.errors import ProcessError, StateSchemaError, StateTypeError
from statekit.job.state_succession import GENERATIONS_MAX
from statekit.query.rows.reader import CheckpointReader
from statekit.state.row_versions import generation_of, marked
from statekit.testing import Harness

BACKENDS = pytest.mark.parametrize("backend", ["memory", "rocksdb"])


class Record(NamedTuple):
    key: str
    act: int = 0


def keeping(of: Any, *values: Any, migrate: Any = None, ttl: str = "") -> Any:
    """A function that keeps a value: that of the number in its record, if it is not 0."""

    def keep(record: Record, held: Any) -> Iterator[str]:
        yield repr(held.get())
        if record.act:
            held.update(values[record.act - 1])

    state: Any = sk.ValueState[of]
    keep.__annotations__["held"] = Annotated[state, sk.TTL(ttl)] if ttl else state
    return sk.process(key="key", migrate={} if migrate is None else {"held": migrate})(keep)


def started(declared: Any, place: Path, backend: Any = "memory") -> Harness:
    return Harness(declared, checkpoint=place, backend=backend)


def seen(declared: Any, place: Path, key: str = "a", backend: Any = "memory") -> Any:
    return started(declared, place, backend).state("held", key)


def job_file(place: Path) -> JobFile:
    repository = Repository(place)
    return repository.job_file(repository.manifest(repository.latest_epoch() or 0).job_file.path)


class Leg(NamedTuple):
    origin: str
    minutes: int


First: Any = Leg


class Leg(NamedTuple):  # type: ignore[no-redef]
    minutes: float
    gate: str = "none"


Second: Any = Leg


class Leg(NamedTuple):  # type: ignore[no-redef]
    minutes: float
    origin: float = 0.5


Third: Any = Leg


class Lower(NamedTuple):
    minutes: int


@BACKENDS
def test_sp25_fields_come_and_go_and_ints_become_floats_without_a_rewrite(
    tmp_path: Path, backend: Any
) -> None:
    """SP25: a new field reads its default, one goes, others change places, int becomes float."""
    started(keeping(First, First("JFK", 5)), tmp_path, backend).send(Record("a", 1))
    harness = started(keeping(Second, Second(6.5, "B")), tmp_path, backend)
    assert harness.send(Record("a"), Record("b", 1)) == ["Leg(minutes=5.0, gate='none')", "None"]
    assert harness.state("held", "b") == Second(6.5, "B")
    for declared, why in ((First, "origin is new and has no"), (Lower, "minutes was float and is")):
        with pytest.raises(StateSchemaError, match=rf"value\.{why}"):
            started(keeping(declared), tmp_path, backend)
    reader = CheckpointReader(tmp_path)
    assert reader.get("keep", "held", "a") == {"minutes": 5.0, "gate": None}
    assert reader.get("keep", "held", "b") == {"minutes": 6.5, "gate": "B"}


def test_a_field_that_went_cannot_come_back_as_another_type_while_its_rows_may_be_there(
    tmp_path: Path,
) -> None:
    started(keeping(First, First("JFK", 5)), tmp_path).send(Record("a", 1))
    started(keeping(Second, Second(6.5)), tmp_path).send(Record("b", 1))
    with pytest.raises(StateSchemaError, match=r"value\.origin was str and is float"):
        started(keeping(Third), tmp_path)
    assert [len(state.past) for state in job_file(tmp_path).operators[0].states] == [1]


def test_the_error_shows_both_types_side_by_side_and_gives_advice(tmp_path: Path) -> None:
    class Leg(NamedTuple):
        origin: str
        minutes: str
        tags: frozenset[str] = frozenset()

    declared = keeping(First, First("JFK", 5))
    started(declared, tmp_path).send(Record("a", 1))
    with pytest.raises(StateSchemaError) as caught:
        started(keeping(Leg), tmp_path)
    assert str(caught.value) == (
        "state 'held' of operator 'keep' changed its type, and stored rows would be misread: "
        "value.minutes was int and is str.\n"
        "    stored in the checkpoint   declared in the code\n"
        "    value state                value state\n"
        "    value: Leg                 value: Leg\n"
        "      origin: str                origin: str\n"
        "  ≠   minutes: int               minutes: str\n"
        "  +                              tags: frozenset[str] = …\n"
        "Declare the stored type again, or give a new field a default, or give "
        "@process(migrate={'held': …}) a function that converts old values; or give "
        "the state another name"
    )


# ------------------------------------------------------------------------------------- hooks


def text_of(number: int) -> str:
    return f"<{number}>"


@BACKENDS
def test_a_hook_converts_rows_that_are_read_and_rows_change_when_they_are_written(
    tmp_path: Path, backend: Any
) -> None:
    started(keeping(int, 5), tmp_path, backend).send(Record("a", 1), Record("b", 1))
    harness = started(keeping(str, "six", migrate=text_of), tmp_path, backend)
    assert harness.send(Record("a"), Record("b", 1)) == ["'<5>'", "'<5>'"]
    assert [harness.state("held", key) for key in "ab"] == ["<5>", "six"]
    reader = CheckpointReader(tmp_path)
    assert [reader.get("keep", "held", key) for key in "ab"] == [5, "six"]
    with pytest.raises(StateSchemaError, match=r"and no hook takes them(.|\n)*statekit migrate"):
        started(keeping(str), tmp_path, backend)


def test_a_hook_without_annotation_takes_plain_data_of_every_generation(tmp_path: Path) -> None:
    started(keeping(First, First("JFK", 5)), tmp_path).send(Record("a", 1))

    def shown(old: Any) -> str:
        return f"{type(old).__name__} {old}"

    started(keeping(str, "new", migrate=shown), tmp_path).send(Record("b", 1))
    place = started(keeping(int, migrate=lambda old: len(str(old))), tmp_path)
    assert [place.state("held", key) for key in "ab"] == [len("{'origin': 'JFK', 'minutes': 5}"), 3]
    assert seen(keeping(str, migrate=shown), tmp_path) == "dict {'origin': 'JFK', 'minutes': 5}"


def test_the_hook_that_is_meant_for_a_type_goes_before_one_that_could_read_it(
    tmp_path: Path,
) -> None:
    def of_float(old: float) -> str:
        return f"float {old}"

    def of_any(old: object) -> str:
        return f"any {old}"

    started(keeping(int, 5), tmp_path).send(Record("a", 1))
    assert seen(keeping(str, migrate=[of_any, of_float, text_of]), tmp_path) == "<5>"
    assert seen(keeping(str, migrate=[of_any, of_float]), tmp_path) == "float 5.0"
    assert seen(keeping(str, migrate=[of_any]), tmp_path) == "any 5"
    with pytest.raises(StateSchemaError, match="several hooks for values of type int, of_any and"):
        started(keeping(str, migrate=[of_any, lambda old: "?"]), tmp_path)


def test_a_hook_for_the_very_type_that_changed_is_called_though_it_could_be_read(
    tmp_path: Path,
) -> None:
    def hours(minutes: int) -> float:
        return minutes / 60

    started(keeping(int, 90), tmp_path).send(Record("a", 1))
    assert seen(keeping(float), tmp_path) == 90.0
    harness = started(keeping(float, migrate=hours), tmp_path)
    assert harness.state("held", "a") == 1.5
    harness.send(Record("b"))
    assert seen(keeping(float, migrate=hours), tmp_path) == 1.5


def test_a_hook_that_was_kept_does_not_pass_over_fields_that_came_since(tmp_path: Path) -> None:
    class Old(NamedTuple):
        minutes: float

    started(keeping(Second, Second(5.0, "B")), tmp_path).send(Record("a", 1))
    with pytest.raises(StateSchemaError, match="value was Leg and is str"):
        started(keeping(str, migrate=lambda_of(Old)), tmp_path)
    assert seen(keeping(str, migrate=lambda_of(Second)), tmp_path) == "Leg(minutes=5.0, gate='B')"


def lambda_of(annotation: Any) -> Callable[[Any], str]:
    def convert(old: Any) -> str:
        return repr(old)

    convert.__annotations__["old"] = annotation
    return convert


def test_a_hook_that_nothing_needs_is_fine(tmp_path: Path) -> None:
    harness = started(keeping(str, "x", migrate=text_of), tmp_path)
    harness.send(Record("a", 1))
    assert harness.state("held", "a") == "x"
    (state,) = job_file(tmp_path).operators[0].states
    assert (state.generation, state.past) == (0, ())


@pytest.mark.parametrize(
    ("hook", "error", "said"),
    [
        (lambda old: old, StateTypeError, "returned 5: expected str, got int 5"),
        (lambda old: old / 0, ProcessError, "failed with ZeroDivisionError: division by zero"),
        (lambda old: "\ud800", StateTypeError, "expected str, got str .*valid UTF-8"),
    ],
)
def test_a_hook_that_fails_fails_the_epoch_and_says_where(
    tmp_path: Path, hook: Any, error: type[Exception], said: str
) -> None:
    started(keeping(int, 5), tmp_path).send(Record("a", 1))
    harness = started(keeping(str, "x", migrate=hook), tmp_path)
    with pytest.raises(error, match=said) as caught:
        harness.send(Record("b", 1), Record("a"))
    assert "migrate hook '<lambda>' of state 'held' of operator 'keep' at key 'a' in epoch 1" in (
        str(caught.value)
    )
    assert "the old value was 5" in str(caught.value)
    assert harness.epoch == 0
    assert seen(keeping(int), tmp_path) == 5


def test_the_result_of_a_hook_is_never_shared_with_it(tmp_path: Path) -> None:
    kept: list[int] = [1]

    @sk.process(key="key", migrate={"held": lambda old: kept})
    def changing(record: Record, held: sk.ValueState[list[int]]) -> Iterator[str]:
        value = held.get() or []
        value.append(2)
        yield repr(value)

    changing.name = changing.__name__ = "keep"
    started(keeping(int, 5), tmp_path).send(Record("a", 1))
    harness = started(changing, tmp_path)
    assert harness.send(Record("a"), Record("a")) == ["[1, 2]", "[1, 2]"]
    assert kept == [1]


@pytest.mark.parametrize("first", ["", "1 hour"])
@pytest.mark.parametrize("then", ["", "1 hour"])
@BACKENDS
def test_marks_of_generations_and_stamps_of_expiry_are_distinguished(
    tmp_path: Path, backend: Any, first: str, then: str
) -> None:
    started(keeping(int, 5, ttl=first), tmp_path, backend).send(Record("a", 1))
    declared = keeping(str, "six", migrate=text_of, ttl=first)
    started(declared, tmp_path, backend).send(Record("b", 1))
    harness = started(keeping(str, "7", migrate=text_of, ttl=then), tmp_path, backend)
    harness.send(Record("c", 1))
    assert [harness.state("held", key) for key in "abc"] == ["<5>", "six", "7"]
    reader = CheckpointReader(tmp_path)
    assert [reader.get("keep", "held", key) for key in "abc"] == [5, "six", "7"]


def test_pickled_values_are_unpickled_only_for_a_hook_that_asks(tmp_path: Path) -> None:
    pickled = Annotated[sk.ValueState[complex], sk.PickleCodec()]

    def before(record: Record, held: Any) -> None:
        held.update(1j)

    before.__annotations__["held"] = pickled
    before.__name__ = "keep"
    started(sk.process(key="key")(before), tmp_path).send(Record("a"))

    def plain(old: object) -> str:
        return "never"

    def asking(old: Annotated[complex, sk.PickleCodec()]) -> str:
        return str(old)

    with pytest.raises(StateSchemaError, match="codec pickle and would be by msgpack"):
        started(keeping(str, migrate=plain), tmp_path)
    assert seen(keeping(str, migrate=[plain, asking]), tmp_path) == "1j"


def test_a_state_whose_type_never_changed_is_bound_as_it_is(tmp_path: Path) -> None:
    harness = started(keeping(int, 5, migrate=text_of), tmp_path)
    harness.send(Record("a", 1))
    spec = harness.process.states[0]
    with harness._opened_at(harness._operator, "a") as (visit, backend, plan):
        assert plan.migrated == {}
        assert spec.bind(visit, backend)._codec is spec.codec


def test_marks_are_counted_up_to_a_limit(tmp_path: Path) -> None:
    started(keeping(int, 5), tmp_path).send(Record("a", 1))
    repository = Repository(tmp_path)
    manifest = repository.manifest(0)
    (operator,) = job_file(tmp_path).operators
    state = operator.states[0].model_copy(update={"generation": GENERATIONS_MAX})
    changed = operator.model_copy(update={"states": (state,)})
    job = job_file(tmp_path).model_copy(update={"operators": (changed,)})
    _, reference = repository.ensure_job_file(job)
    repository.commit(manifest.followed_by(job_file=reference))
    with pytest.raises(StateSchemaError, match=r"changed its type 255 times(.|\n)*migrate"):
        started(keeping(str, migrate=text_of), tmp_path)


def test_the_generation_of_a_row_is_in_front_of_its_value() -> None:
    assert [generation_of(marked(number) + b"\x05") for number in (0, 1, 255)] == [
        (0, b"\x05"),
        (1, b"\x05"),
        (255, b"\x05"),
    ]
    with pytest.raises(sk.CorruptCheckpointError, match="cut short"):
        generation_of(b"\xc1\x00")


# ------------------------------------------------------------------------------- declarations


def two(a: int, b: int) -> str:
    return ""


def none() -> str:
    return ""


def unsupported(old: list) -> str:  # type: ignore[type-arg]
    return ""


def unknown(old: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


@pytest.mark.parametrize(
    ("migrate", "said"),
    [
        ({"other": text_of}, r"'other', which is no state of it \(it has held\)"),
        ({"held": 5}, r"migrate\['held'\]: a hook is a function .*, not 5"),
        ({"held": [text_of, str]}, "a hook is a function"),
        ({"held": two}, "callable with one argument"),
        ({"held": none}, "callable with one argument"),
        ({"held": unsupported}, "parameter 'old' of unsupported: list is not supported"),
        ({"held": unknown}, "'Nowhere' cannot be resolved"),
        ([text_of], "give a dict from names of states to functions"),
    ],
)
def test_a_wrong_hook_is_refused_at_decoration(migrate: Any, said: str) -> None:
    def keep(record: Record, held: sk.ValueState[str]) -> None: ...

    with pytest.raises(StateTypeError, match=said) as caught:
        sk.process(key="key", migrate=migrate)(keep)
    assert "keep" in str(caught.value)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_hooks_travel_with_their_process(dumps: Any) -> None:
    declared = keeping_text
    again = pickle.loads(dumps(declared)) if dumps is cloudpickle.dumps else declared
    (hook,) = again.states[0].hooks
    assert hook.codec is not None
    assert (hook.fn(5), hook.codec.schema.kind) == ("<5>", "int")


@sk.process(key="key", migrate={"held": text_of})
def keeping_text(record: Record, held: sk.ValueState[str]) -> None: ...
