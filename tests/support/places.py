"""Where the project's files are."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DOCS", "ROOT", "STORED", "SUPPORT", "TESTS"]

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
DOCS = ROOT / "docs"
STORED = TESTS / "stored"
