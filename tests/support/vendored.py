"""Get the modules of others that the dashboard loads, as `pins.json` names them.

`python -m tests.support.vendored` packs each package with npm, checks the archive against its pin,
and writes the files below statekit/server/dashboard/vendor. With `PACKAGE@VERSION…` it pins these
versions first.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.support.places import ROOT

VENDOR = ROOT / "statekit" / "server" / "dashboard" / "vendor"
PINS = VENDOR / "pins.json"


def main(wanted: list[str]) -> None:
    pins = json.loads(PINS.read_text())
    for each in wanted:
        name, _, version = each.rpartition("@")
        pins[name] |= {"version": version, "integrity": None}
    for name, pin in pins.items():
        _get(name, pin)
    PINS.write_text(json.dumps(pins, indent=2) + "\n")


def _get(name: str, pin: dict[str, Any]) -> None:
    """Write the files of a package; pin it if it has no integrity yet."""
    with tempfile.TemporaryDirectory() as directory:
        command = ["npm", "pack", "--silent", f"{name}@{pin['version']}"]
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(directory).iterdir()
        digest = hashlib.sha512(archive.read_bytes()).digest()
        integrity = f"sha512-{base64.b64encode(digest).decode()}"
        if pin["integrity"] not in (None, integrity):
            raise SystemExit(f"{name}@{pin['version']} is {integrity}, and not {pin['integrity']}")
        pin["integrity"] = integrity
        with tarfile.open(archive) as packed:
            for source, target in pin["files"].items():
                member = packed.extractfile(f"package/{source}")
                assert member is not None, f"{name} has no file {source}"
                (VENDOR / target).write_bytes(_adapted(member.read()))
        pin["sha256"] = {target: digest_of(VENDOR / target) for target in pin["files"].values()}


def _adapted(data: bytes) -> bytes:
    """Return a module that imports others by path, as browsers need it, and names no source map."""
    text = data.decode()
    text = re.sub(r'from\s?"preact"', 'from"./preact.js"', text)
    return re.sub(r"\n//# sourceMappingURL=\S+", "", text).encode()


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
