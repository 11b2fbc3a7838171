"""What a submitted document may give to sources and sinks: lists of parameters and options.

What is not in a list is refused, because options of libraries can name code, commands and files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from statekit.connectors.postgres import connection_parameters
from statekit.errors import StateTypeError
from statekit.shown import shown

Place = Callable[[str, object], None]
"""Checks a place of files or a URL, with the name of the option that has it."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VALUES = _names(
    """
    $secret $duration $datetime $date $time $decimal $float $bytes $pattern $function
    """
)
"""Forms of single values."""

KAFKA_OPTIONS = _names(
    """
    acks allow.auto.create.topics api.version.request batch.num.messages batch.size
    broker.address.family broker.address.ttl check.crcs client.dns.lookup client.id client.rack
    compression.codec compression.level compression.type connections.max.idle.ms
    delivery.timeout.ms enable.metrics.push enable.sasl.oauthbearer.unsecure.jwt
    enable.ssl.certificate.verification fetch.error.backoff.ms fetch.max.bytes
    fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms
    heartbeat.interval.ms linger.ms log.connection.close max.in.flight
    max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
    message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms
    metadata.max.age.ms metadata.recovery.strategy partitioner queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes
    queued.min.messages receive.message.max.bytes reconnect.backoff.max.ms reconnect.backoff.ms
    request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.mechanism sasl.mechanisms sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.method
    sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url sasl.password sasl.username
    security.protocol session.timeout.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
    ssl.curves.list ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password
    ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.sigalgs.list
    sticky.partitioning.linger.ms topic.metadata.propagation.max.ms
    topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse transaction.timeout.ms
    """
)
"""Properties of librdkafka. `sasl.kerberos.*` are none of them: they are parts of a command."""

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""Without GSSAPI, which takes the Kerberos ticket of the server."""

CATALOG_OPTIONS = _names(
    """
    type uri warehouse token credential scope audience resource oauth2-server-uri prefix
    rest.sigv4-enabled rest.signing-region rest.signing-name client.region s3.endpoint s3.region
    s3.access-key-id s3.secret-access-key s3.session-token s3.force-virtual-addressing
    s3.connect-timeout s3.request-timeout gcs.project-id gcs.oauth2.token adls.account-name
    adls.account-key adls.sas-token adls.tenant-id adls.client-id adls.client-secret
    """
)
"""Properties of an Iceberg catalog."""

_URLS = ("oauth2-server-uri", "s3.endpoint")
_CATALOGS = ("rest", "sql")

POSTGRES_PARAMETERS = _names(
    """
    host port dbname user connect_timeout application_name keepalives keepalives_idle
    keepalives_interval keepalives_count tcp_user_timeout sslmode sslnegotiation sslrootcert sslcert
    sslkey sslcrl sslsni ssl_min_protocol_version ssl_max_protocol_version channel_binding
    require_auth target_session_attrs load_balance_hosts
    """
)
"""Parameters of a connection of libpq. `hostaddr` is none of them: the password is that of the host
that the URL names.
"""

_FILES_OF_POSTGRES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")

_SQLITE = re.compile(r"sqlite(\+pysqlite)?:///(?=/)")


def check_connector(name: str, arguments: object, place: Place) -> None:
    """Check the arguments of a source or a sink.

    Parameters:
        name: such as "sinks.kafka".
        place: checks each place of files, and each URL of a catalog.

    Raises:
        StateTypeError: a parameter, an option or a place is not allowed.
    """
    checks = CONNECTORS.get(name)
    if checks is None:
        raise StateTypeError(
            f"{shown(name, 100)} has options that the server cannot check: give another source or "
            "sink of statekit"
        )
    for parameter, value in _mapping(name, arguments):
        if parameter not in checks:
            raise StateTypeError(_unknown(parameter))
        if value is not None:
            checks[parameter](parameter, value, place)


def _unknown(option: str) -> str:
    return (
        f"{shown(option, 100)} is none of the options that documents may have on a server: leave "
        "it out, or run the job with `statekit run`"
    )


def _mapping(at: str, value: object) -> Iterator[tuple[str, Any]]:
    """Yield the options of an object of JSON."""
    if not isinstance(value, dict) or any(name.startswith("$") for name in value):
        raise StateTypeError(f"{at}={shown(value, 100)}: give an object of JSON with options")
    yield from value.items()


def _check_value(option: str, value: object, _: Place) -> None:
    """Check that a value is a text, a number, or another one without parts."""
    is_form = isinstance(value, dict) and bool(value) and next(iter(value)) in _VALUES
    if isinstance(value, list) or (isinstance(value, dict) and not is_form):
        raise StateTypeError(f"{option}={shown(value, 100)}: give a single value, not an object")


def _check_values(option: str, value: Any, place: Place) -> None:
    """Check a value, or a list of values."""
    if isinstance(value, dict) and set(value) == {"$tuple"}:
        value = value["$tuple"]
    for each in value if isinstance(value, list) else [value]:
        _check_value(option, each, place)


def _check_fields(option: str, value: object, place: Place) -> None:
    """Check names of fields or headers, which are free, with their values."""
    own = value["$mapping"] if isinstance(value, dict) and set(value) == {"$mapping"} else value
    if not isinstance(own, dict):
        raise StateTypeError(f"{option}={shown(value, 100)}: give an object of JSON")
    for name, each in own.items():
        _check_value(f"{option}.{shown(name, 100)}", each, place)


def _check_place(option: str, value: object, place: Place) -> None:
    place(option, value)


def _check_options_of_files(_: str, value: object, place: Place) -> None:
    for name, each in _mapping("options", value):
        if name not in _OF_FILES:
            raise StateTypeError(_unknown(name))
        _check_value(name, each, place)


def _check_kafka(_: str, value: object, place: Place) -> None:
    for name, each in _mapping("options", value):
        if name not in KAFKA_OPTIONS:
            raise StateTypeError(_unknown(name))
        _check_value(name, each, place)
        if name.endswith(".location"):
            place(name, each)
        if name.startswith("sasl.mechanism") and each not in _MECHANISMS:
            raise StateTypeError(f"{name}={shown(each, 100)}: give {', '.join(_MECHANISMS)}")


def _check_catalog(option: str, value: object, place: Place) -> None:
    if isinstance(value, str):
        raise StateTypeError(
            f"catalog={shown(value, 100)} is a catalog that the server's user has configured: give "
            "its properties"
        )
    properties = dict(_mapping(option, value))
    for name, each in properties.items():
        if name not in CATALOG_OPTIONS:
            raise StateTypeError(_unknown(name))
        _check_value(name, each, place)
        if name in _URLS:
            place(name, each)
    kind, uri = properties.get("type"), properties.get("uri")
    if kind not in _CATALOGS:
        raise StateTypeError(f"type={shown(kind, 100)}: give one of {', '.join(_CATALOGS)}")
    _check_uri(kind, uri, place)
    warehouse = properties.get("warehouse")
    if warehouse is not None and not (kind == "rest" and _is_name(warehouse)):
        place("warehouse", warehouse)


def _check_uri(kind: object, uri: object, place: Place) -> None:
    """Check the address of a catalog. What it answers can name code, so it has to be allowed."""
    if not isinstance(uri, str):
        raise StateTypeError(f"uri={shown(uri, 100)}: give the address of the catalog as a text")
    scheme = urlsplit(uri).scheme.partition("+")[0]
    if kind == "rest" and scheme in ("http", "https"):
        place("uri", uri)
    elif kind == "sql" and (found := _SQLITE.match(uri)) and "?" not in uri:
        place("uri", uri[found.end() :])
    elif kind == "sql" and scheme == "postgresql":
        place("uri", uri)
    else:
        raise StateTypeError(
            f"uri={shown(uri, 200)}: give http:// or https:// for a catalog of type rest, and "
            "sqlite:/// with an absolute path or postgresql:// for one of type sql"
        )


def _is_name(warehouse: object) -> bool:
    return isinstance(warehouse, str) and re.fullmatch(r"[\w-]+", warehouse) is not None


def _check_database(option: str, value: object, place: Place) -> None:
    """Check the URL or connection string of libpq. One that is a secret is the server's."""
    if isinstance(value, dict) and set(value) == {"$secret"}:
        return
    if not isinstance(value, str):
        raise StateTypeError(f"{option}={shown(value, 100)}: give a text or a secret")
    given = connection_parameters(value)
    for name, each in given.items():
        if name not in POSTGRES_PARAMETERS | {"password"}:  # the document refuses a password
            raise StateTypeError(_unknown(name))
        if name in _FILES_OF_POSTGRES and each != "system":
            place(name, each)
    hosts = given.get("host", "").split(",")
    if any(not host or host.startswith(("/", "@")) for host in hosts):
        raise StateTypeError(
            f"{option} names no host, so libpq connects to a local socket as the server's user: "
            "give the name of a host"
        )


Check = Callable[[str, Any, Place], None]

_OF_FILES = ("order", "tail", "static", "look_back")
_FILE_SOURCE: Mapping[str, Check] = {"path": _check_place, "options": _check_options_of_files}
_FILE_SINK: Mapping[str, Check] = {"path": _check_place}
_LAKE: Mapping[str, Check] = dict.fromkeys(("mode", "key", "delete"), _check_values)
_KAFKA: Mapping[str, Check] = {
    **dict.fromkeys(("servers", "value", "retry_seconds"), _check_value),
    "options": _check_kafka,
}


def _values(names: str) -> Mapping[str, Check]:
    return dict.fromkeys(_names(names), _check_values)


CONNECTORS: Mapping[str, Mapping[str, Check]] = {
    "sources.files": {"path": _check_place, **_values("format order tail static look_back")},
    **{f"sources.{kind}": _FILE_SOURCE for kind in ("json_lines", "csv", "parquet", "arrow")},
    "sources.kafka": {
        **_KAFKA,
        **_values("topics start isolation drop_repeats find_new_seconds registry"),
        "fields": _check_fields,
    },
    "sources.postgres": {
        "url": _check_database,
        **_values("table_or_query by static wait_for settle_s retry_s"),
    },
    "sources.rate": _values("per_second"),
    "sources.socket": _values("host port format connect_s"),
    **{f"sinks.{kind}": _FILE_SINK for kind in ("json_lines", "csv", "parquet")},
    "sinks.callback": _values("fn concurrent"),
    "sinks.console": _values("limit"),
    "sinks.delta": {**_FILE_SINK, **_LAKE},
    "sinks.iceberg": {
        **_LAKE,
        "table": _check_value,
        "warehouse": _check_place,
        "catalog": _check_catalog,
    },
    "sinks.kafka": {
        **_KAFKA,
        **_values("topic key partitioner partitions transactional"),
        "headers": _check_fields,
    },
    "sinks.postgres": {
        "url": _check_database,
        **_values("table key mode delete epoch_column retry_s"),
    },
}
"""The parameters of sources and sinks that documents may name, and how each is checked."""
