"""Values and errors of users in messages."""

from __future__ import annotations

from typing import Any

import pytest

from statekit.shown import shown, shown_error, shown_text, type_name


def raising(error: BaseException) -> Any:
    """Return an object whose every text is an error."""

    class Broken(Exception):
        def __repr__(self) -> str:
            raise error

        __str__ = __repr__

    return Broken()


FAILURES = [
    ValueError("x"),
    SystemExit(3),
    GeneratorExit(),
    BaseExceptionGroup("g", [SystemExit()]),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_value_whose_text_fails_is_shown_by_its_class(error: BaseException) -> None:
    name = type(error).__name__
    assert shown(raising(error)) == f"<Broken, whose repr() fails with {name}>"
    assert shown_error(raising(error)) == f"Broken: <its str() fails with {name}>"


def test_a_keyboard_interrupt_stops_also_where_a_message_is_made() -> None:
    with pytest.raises(KeyboardInterrupt):
        shown(raising(KeyboardInterrupt()))


def test_what_is_shown_is_bounded_and_valid_text() -> None:
    assert shown("a" * 10_000) == f"'{'a' * 399}… (10002 characters)"
    assert len(shown_text(ValueError("x" * 10_000_000))) < 3000
    assert shown_text(ValueError("\ud800")) == "\\ud800"
    assert shown(10**10_000) == "an int of 33220 bits"


def test_deeply_nested_values_are_shown_by_their_class() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "a deeply nested list"


def test_classes_that_could_be_taken_for_others_have_their_module() -> None:
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    names = [type_name(value) for value in (np.True_, np.float64(1), pd.NaT, pd.NA, True)]
    assert names == ["numpy.bool", "numpy.float64", "pandas.NaT", "pandas.NA", "bool"]


def test_a_class_without_a_name_is_shown() -> None:
    class Meta(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise ValueError("no name")

    class Nameless(metaclass=Meta):
        def __repr__(self) -> str:
            raise ValueError("no repr")

    assert shown(Nameless()) == "<object, whose repr() fails with ValueError>"
