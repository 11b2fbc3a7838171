"""Locations of checkpoints: local paths and URLs of object stores."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from statekit.errors import StateTypeError

_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "memory")
# Stores that are known by their address, and so are no mere web servers.
_HOST = re.compile(
    r"https://[^/]+\.(core\.windows\.net|fabric\.microsoft\.com|amazonaws\.com"
    r"|r2\.cloudflarestorage\.com)(:\d+)?(/|$)",
    re.I,
)


def local_path(url: str | Path) -> Path | None:
    """Return the local directory of a URL or path; None for an object store.

    Raises:
        StateTypeError: it is a `file:` URL without a clear path.

    >>> local_path("file:///tmp/a%20b")
    PosixPath('/tmp/a b')
    >>> local_path("s3://bucket/checkpoint") is None
    True
    """
    if isinstance(url, Path):
        return url
    if url.lower().startswith("file:"):
        return _path_of_file_url(url)
    return None if "://" in url else Path(url)


def same_place(url: str | Path) -> str:
    """Return a text that is equal for all ways to write one location.

    >>> same_place("/tmp/../data/") == same_place("file:///data")
    True
    """
    path = local_path(url)
    return remote_url(str(url)).rstrip("/") if path is None else path.resolve().as_uri()


def place_elsewhere(url: str) -> str:
    """Return a location for another process, which may have another working directory.

    >>> place_elsewhere("s3://lake/orders"), place_elsewhere("/data/orders")
    ('s3://lake/orders', '/data/orders')
    """
    path = local_path(url)
    return url if path is None or path.is_absolute() else str(path.absolute())


def _path_of_file_url(url: str) -> Path:
    """Return the path of a `file:` URL, which has no host, no query and no fragment.

    Raises:
        StateTypeError: it has one, or no absolute path.
    """
    place = url[len("file:") :]
    if place.startswith("//"):
        host, slash, path = place[2:].partition("/")
        place = slash + path if host in ("", "localhost") else ""
    if not place.startswith("/"):
        raise StateTypeError(
            f"{url}: a file URL begins with file:/// and has an absolute path: give "
            "file:///data/checkpoint, or the path itself"
        )
    if "?" in place or "#" in place:
        raise StateTypeError(
            f"{url}: '?' and '#' end the path of a URL: write %3F and %23, or give the path itself"
        )
    return Path(unquote(place))


def remote_url(url: str) -> str:
    """Check and return the URL of an object store. It appears in messages, in plans and on workers.

    Raises:
        StateTypeError: it contains credentials, or statekit does not support the store.
    """
    scheme, _, rest = url.partition("://")
    place = rest.partition("/")[0]
    if scheme in ("abfs", "abfss"):
        place, rest = place.replace("@", "", 1), rest.replace("@", "", 1)  # container@account…
    # A key that is pasted into a URL as it is may well have a slash in it.
    if "@" in rest or "?" in rest or "#" in rest or not re.fullmatch(r"[^:]*(:\d*)?", place):
        raise StateTypeError(
            f"the {scheme}:// URL of a checkpoint has a user, a password or something behind '?' "
            "or '#': leave that out, and give credentials in the environment; see "
            "docs/operate/object-storage.md"
        )
    if scheme.lower() not in _SCHEMES and not _HOST.match(url):
        raise StateTypeError(
            f"{url}: a checkpoint cannot be kept at such a {scheme}:// address. Give a local path, "
            "s3://bucket/prefix, gs://bucket/prefix or "
            "abfss://container@account.dfs.core.windows.net/prefix; the address of a server that "
            "speaks S3 goes into AWS_ENDPOINT_URL"
        )
    return url.rstrip("/") if place else url
