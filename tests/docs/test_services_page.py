"""The examples of the page about calls of services run as they are shown."""

from __future__ import annotations

import doctest

from tests.support.http_service import service
from tests.support.places import DOCS

PAGE = DOCS / "guide" / "services.md"


def test_the_page_about_calls_of_services_runs() -> None:
    with service() as served:
        found = doctest.testfile(str(PAGE), module_relative=False, globs={"URL": served.url})
    assert found.attempted > 5
    assert found.failed == 0
