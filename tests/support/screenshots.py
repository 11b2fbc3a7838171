"""Pictures of the dashboard for the documentation.

`python -m tests.support.screenshots ADDRESS JOB` writes those in docs/images, of the light and the
dark theme. The job is that of `statekit demo --serve`.
"""

from __future__ import annotations

import sys

from tests.support.browser import browser, page
from tests.support.places import ROOT

SIZE = {"width": 1280, "height": 1010}


def main(address: str, job: str) -> None:
    with browser() as running:
        for scheme in ("light", "dark"):
            with page(running, color_scheme=scheme, viewport=SIZE) as own:
                own.goto(f"{address}/#/{job}")
                own.get_by_text("Bytes of state, by operator").wait_for()
                own.wait_for_timeout(1500)
                own.screenshot(path=ROOT / "docs" / "images" / f"dashboard-{scheme}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
