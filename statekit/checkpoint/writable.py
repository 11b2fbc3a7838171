"""Whether files can be created at a location, found out without leaving any behind."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from statekit.checkpoint.object_store import StoreOptions, without_credentials
from statekit.checkpoint.store import Store
from statekit.checkpoint.store_url import local_path
from statekit.clock import unique_id
from statekit.errors import StorageError

_BYTES = 4096


def check_writable(location: str, drafts: str, limit_s: float) -> str:
    """Check that files can be created at a location, and return the finding, for people.

    On a local disk, a file without a name is written. In an object store, an empty object is
    written and removed.

    Parameters:
        location: a directory, which need not exist, or a URL.
        drafts: the folder of files that are being written.
        limit_s: how long requests to an object store are retried, in seconds.

    Raises:
        StateTypeError: the URL is not valid.
        StorageError: no file can be written there, or removed.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_writable(f"{folder}/new/totals", "_statekit", 1.0)
    'it does not exist and can be made'
    """
    if (path := local_path(location)) is not None:
        return _check_folder(path.absolute())
    options = replace(StoreOptions.of(os.environ), retry_seconds=limit_s, timeout_seconds=limit_s)
    store = Store(location, drafts=drafts, options=options)
    name = f"{drafts}/check-{unique_id()}"
    store.replace(name, b"")
    store.remove([name])
    return "it can be written"


def _check_folder(path: Path) -> str:
    folder = next(each for each in (path, *path.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * _BYTES)
            file.flush()
    except OSError as error:
        raise StorageError(
            f"no file can be written in {without_credentials(str(folder))}: {error.strerror}. "
            f"Nothing was changed: make {path} a directory that the user of the job may write, on "
            "a disk with space"
        ) from error
    return "it can be written" if folder == path else "it does not exist and can be made"
