"""How much tests try: a little each time, and much in `make soak`."""

from __future__ import annotations

import os

SOAK = bool(os.environ.get("STATEKIT_SOAK"))
