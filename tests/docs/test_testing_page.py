"""The first pages about testing are true: their examples have the results on the pages."""

from __future__ import annotations

from statekit.testing.effort import Effort
from tests.support.pages import check_examples


def test_the_examples_of_the_first_page_have_the_results_on_the_page() -> None:
    check_examples("testing", Effort(examples=3))


def test_the_examples_of_the_page_about_replays_have_the_results_on_the_page() -> None:
    check_examples("replay")
