"""A checkpoint without the files of its rows: whoever reads one of them fails."""

from __future__ import annotations

import shutil
from pathlib import Path

from statekit.checkpoint.paths import PAGE


def hide_rows(checkpoint: Path) -> None:
    """Take away all files of rows. Pages stay: they are part of manifests."""
    data, hidden = checkpoint / "data", checkpoint / "hidden"
    data.rename(hidden)
    for page in hidden.rglob(f"*.{PAGE}"):
        stays = data / page.relative_to(hidden)
        stays.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(page, stays)


def show_rows(checkpoint: Path) -> None:
    """Bring the files back."""
    shutil.copytree(checkpoint / "hidden", checkpoint / "data", dirs_exist_ok=True)
    shutil.rmtree(checkpoint / "hidden")
