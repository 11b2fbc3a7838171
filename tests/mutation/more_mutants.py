"""More faults: of windows, aggregates, stores, queries, several inputs and redistribution."""

from __future__ import annotations

from tests.mutation.mutants import Mutant

MORE: list[Mutant] = []
