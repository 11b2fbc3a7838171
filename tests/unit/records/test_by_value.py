"""Functions that are pickled by value."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from statekit.records import by_value


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
