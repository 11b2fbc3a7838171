"""Options of a server. The command `statekit serve` has those with a description."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field


class ServerOptions(BaseModel, frozen=True, extra="forbid"):
    """The options of a server."""

    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: int = Field(default=8321, ge=0, le=65535, description="The port to listen on.")
    tokens: Path | None = Field(
        default=None, description="A file of tokens, and of what each may read."
    )
    insecure: bool = Field(default=False, description="Listen beyond this machine without tokens.")
    allow_host: list[str] = Field(
        default_factory=list,
        description="A further name that requests may call the server by; repeat it.",
    )
    directory: Path | None = Field(
        default=None,
        description="Where copies of the state are kept, for a fast start; else temporary.",
    )
    epochs: int = Field(
        default=16, ge=1, le=1000, description="Number of the last epochs that can be read."
    )
    rate: float | None = Field(
        default=None, ge=0.1, description="Requests per second of one token."
    )
    refusals: float | None = Field(
        default=10.0, ge=0.1, description="Requests per second of one address that are refused."
    )
    trusted_proxy: list[str] = Field(
        default_factory=list,
        description="The address, or the network in CIDR notation, of a proxy whose "
        "X-Forwarded-For is trusted; repeat it.",
    )
    access_log: bool = Field(default=False, description="Write a line to stdout for each request.")
    connections: int = Field(
        default=1000, ge=1, description="Number of connections that may be open."
    )
    timeout: float = Field(
        default=120.0, ge=0.1, description="Seconds until the answer of a request has to begin."
    )
    tables: int = Field(
        default=16, ge=1, description="Number of files of states that may be asked for at a time."
    )
    memory: str | None = Field(
        default=None, description="Memory for copies of the state, as 512MB."
    )
    disk: str | None = Field(default=None, description="Disk for copies and files, as 50GB.")
    allow_origin: list[str] = Field(
        default_factory=list,
        description="A site whose pages may read, as https://example.com; repeat it.",
    )
    watchers: int = 500
    waits: int = 200
    waits_of_token: int = 100
    """Requests that watch a state, that wait for an epoch, and those of one token, at a time."""


class JobServerOptions(ServerOptions, frozen=True, extra="forbid"):
    """The options of a server that runs jobs: those of a server, and limits of documents."""

    allow: list[str] = Field(
        default_factory=list,
        description="A package or module that documents may import; repeat it.",
    )
    checkpoints_below: list[str] = Field(
        default_factory=list,
        description="A directory or URL below which checkpoints are; repeat it.",
    )
    data_below: list[str] = Field(
        default_factory=list,
        description="A directory or URL below which files of sources and sinks are; repeat it.",
    )
    secret: list[str] = Field(
        default_factory=list,
        description="An environment variable, or a file or directory, with secrets that documents "
        "may name; repeat it.",
    )
    spark: list[str] = Field(
        default_factory=list,
        description="A master of Spark that jobs may run on, as local[2]; repeat it.",
    )
    serve: list[str] = Field(
        default_factory=list,
        description="A checkpoint whose state is served, as [NAME=]CHECKPOINT; repeat it.",
    )
    work: Path | None = Field(
        default=None,
        description="A local directory for locks and logs of jobs; else in the registry.",
    )
