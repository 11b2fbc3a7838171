"""The state machine of the protocol, as a finder of faults."""

from __future__ import annotations

import sys

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.test_protocol_fuzz import HISTORIES, Protocol

EXAMPLES = 60


def main() -> None:
    """Run histories of the protocol until one fails."""
    try:
        run_state_machine_as_test(
            Protocol, settings=settings(HISTORIES, max_examples=EXAMPLES, database=None)
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it was found
        reason = str(error).splitlines()[0] if str(error) else "an assertion of the model"
        print(f"state machine: {type(error).__name__}: {reason[:100]}")
        sys.exit(1)


if __name__ == "__main__":
    main()
