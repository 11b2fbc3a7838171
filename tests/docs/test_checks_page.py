"""The page about checks is true: they find the mistakes on it."""

from __future__ import annotations

from tests.support.pages import check_examples


def test_the_examples_of_the_page_have_the_results_on_the_page() -> None:
    check_examples("testing-checks")


def test_the_mistakes_of_the_page_are_found_as_it_says() -> None:
    check_examples("testing-mistakes")
