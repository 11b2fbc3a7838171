"""What functions of operations give is checked, whatever the store holds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import statekit as sk


class Given(NamedTuple):
    key: str
    amount: int


def wrong(
    operation: str, argument: str, value: Any, of: Any = int, held: Any = 1, key: str = "a"
) -> str:
    """The error of an operation whose argument gives a value. The store has one of the key "a"."""
    job = sk.Job("given")
    store = job.add(sk.KVStore("kv", key=str, value=of))
    records = job.source("records", Given)
    store.put(
        records.filter(lambda r: r.amount == 0, name="first"), key="key", value=lambda r: held
    )
    arguments: dict[str, Any] = {"key": "key", argument: lambda record: value}
    later = records.filter(lambda record: record.amount == 1, name="later")
    if operation == "compare_and_set":
        arguments = {"expected": lambda r: held, "value": lambda r: held} | arguments
    if operation == "update":
        store.update(later, lambda before, record: value, key="key")
    else:
        getattr(store, operation)(later, **arguments)
    with pytest.raises(sk.StateTypeError) as failed:
        job.run({"records": [Given("a", 0), Given(key, 1)]}, epoch_size=1)
    return str(failed.value)


@pytest.mark.parametrize("key", ["a", "other"])
@pytest.mark.parametrize("value", ["z", 1.0, 2.0, True, False, [1]])
@pytest.mark.parametrize(
    ("operation", "argument"),
    [
        ("put", "value"),
        ("put_if_absent", "value"),
        ("compare_and_set", "expected"),
        ("compare_and_set", "value"),
        ("update", "the function"),
    ],
)
def test_a_value_of_another_type_names_operation_key_and_record_whatever_is_held(
    operation: str, argument: str, value: Any, key: str
) -> None:
    message = wrong(operation, argument, value, key=key)
    what = argument if argument == "the function" else f"{argument}="
    assert message.startswith(f"kv.{operation}.later: {what} gave {value!r} for the record Given(")
    assert f"got {type(value).__name__}" in message
    if operation != "put":
        assert f"at key {key!r}" in message


@pytest.mark.parametrize(
    ("of", "held", "expected"),
    [
        (list[int], [1], [True]),
        (list[int], [1], [1.0]),
        (dict[str, int], {"a": 1}, {"a": True}),
        (tuple[int, str], (1, "a"), (True, "a")),
    ],
)
def test_the_type_of_an_expected_value_is_checked_within_it_too(
    of: Any, held: Any, expected: Any
) -> None:
    message = wrong("compare_and_set", "expected", expected, of=of, held=held)
    assert message.startswith("kv.compare_and_set.later: expected= gave")


@pytest.mark.parametrize(
    ("of", "held", "expected", "won"),
    [
        (float, 1.0, 1, True),
        (float, float("nan"), float("nan"), True),
        (float, 0.0, -0.0, True),
        (int | bool, 1, True, False),
        (list[int | bool], [1, True], [1, 1], False),
        (list[int | bool], [1, True], [1, True], True),
        (int, 1, None, False),
        (int | str, 1, "1", False),
    ],
)
def test_an_expected_value_of_the_type_is_compared_by_value_and_true_is_not_1(
    of: Any, held: Any, expected: Any, won: bool
) -> None:
    job = sk.Job("given")
    store = job.add(sk.KVStore("kv", key=str, value=of))
    records = job.source("records", Given)
    store.put(records, key="key", value=lambda record: held)
    store.compare_and_set(
        records, key="key", expected=lambda record: expected, value=lambda record: None
    ).sink("set")
    answers: list[Any] = job.run({"records": [Given("a", 1)]})["set"]
    (answer,) = answers
    assert answer.won is won


@pytest.mark.parametrize("key", [None, 1, ["a"], np.str_("a")])
def test_a_key_of_another_type_names_multi_get_and_the_record(key: Any) -> None:
    job = sk.Job("given")
    store = job.add(sk.KVStore("kv", key=str, value=int))
    records = job.source("records", Given)
    store.put(records, key="key", value="amount")
    store.multi_get(records, keys=lambda record: ["a", key])
    with pytest.raises(sk.StateTypeError, match=r"kv\.multi_get\.records: keys= gave .* Given\("):
        job.run({"records": [Given("a", 0)]})
