"""Functions that are pickled by value."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

from statekit.records import by_value
from statekit.testing.drivers.processes import OtherProcess, call_functions


def defined_in(file: str) -> Callable[[], Any]:
    """A function with another one inside, which has the code's file."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(
        compile("def outer():\n    return (lambda: 1).__code__.co_filename", file, "exec"),
        namespace,
    )
    function: Callable[[], Any] = namespace["outer"]
    return function


def test_a_function_has_the_same_bytes_in_whichever_file_it_is_defined() -> None:
    one, other = map(defined_in, ("/one.py", "/other.py"))
    assert by_value.dumps(one) == by_value.dumps(other)


@pytest.mark.parametrize("file", ["/one.py", "<stdin>"])
def test_a_function_keeps_the_file_of_its_code_if_it_is_asked_to(file: str) -> None:
    read = pickle.loads(by_value.dumps(defined_in(file), keeps_files=True))
    assert read.__code__.co_filename == file
    assert read() == file


STRUCT = """
import msgspec
class Order(msgspec.Struct, kw_only=True, rename="camel"):
    total_cents: int = 0
    lines: list[int] = msgspec.field(default_factory=list)
    def is_paid(self) -> bool:
        return self.total_cents == 0
"""


def test_a_struct_of_a_script_is_one_class_in_each_process() -> None:
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(STRUCT, script)
    order = script["Order"](total_cents=1)
    assert type(pickle.loads(by_value.dumps(order))) is script["Order"]
    with OtherProcess("echoes", call_functions, {}) as elsewhere:
        first = elsewhere.call(_both, order, order)
        assert first == (order, order)
        elsewhere.call(_keep, order)
        assert elsewhere.call(_is_class_of_kept, script["Order"](total_cents=2))


def _both(one: Any, other: Any) -> tuple[Any, Any]:
    assert type(one) is type(other)
    return one, other


def _keep(order: Any) -> None:
    setattr(sys, "kept_order", order)  # noqa: B010 - of the other process


def _is_class_of_kept(order: Any) -> bool:
    return type(order) is type(getattr(sys, "kept_order"))  # noqa: B009
