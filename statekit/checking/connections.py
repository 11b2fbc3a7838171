"""Findings about sources and sinks: whether a run would reach them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from statekit.checkpoint.object_store import without_credentials
from statekit.clock import stopwatch_s
from statekit.connectors.probed import Probed
from statekit.errors import CALL_FAILURES, ProcessError
from statekit.job.findings import JobFinding, Severity, failed_check
from statekit.job.plan import Plan
from statekit.runtime.stream_forms import columns_of
from statekit.shown import type_name
from statekit.sinks.protocol.output_schema import schema_for_sinks
from statekit.sinks.protocol.sink import Outputs

_SLACK_S = 2.0
"""How much longer than its limit a probe may take, to report its own error, in seconds."""


class Connection(NamedTuple):
    """A source or a sink that is to be probed.

    Parameters:
        where: the part of the job.
        probed: the source or sink, or what else was given as one.
        declared: what it is to read or write.
        may_misfit: whether the job continues after records that do not fit.
    """

    where: str
    probed: object
    declared: Any
    may_misfit: bool = False


def connections_of(
    job: Plan, origins: Mapping[str, object], targets: Mapping[str, object], checkpoint: str
) -> list[Connection]:
    """Return the connections of a run. Sinks whose outputs have no schema are left out.

    Parameters:
        origins, targets: of the run, by source and by sink.
        checkpoint: its id.
    """
    found = [
        Connection(
            f"source {each.name}", origins[each.name], each.record_type, each.on_error != "fail"
        )
        for each in job.sources
        if each.name in origins
    ]
    for sink in job.sinks:
        if sink.name in targets:
            try:
                schema = schema_for_sinks(columns_of(job, sink.stream).arrow_schema)
            except CALL_FAILURES:
                continue  # a finding about the declared parts
            outputs = Outputs(checkpoint, sink.name, schema)
            found.append(Connection(f"sink {sink.name}", targets[sink.name], outputs))
    return found


def connection_findings(connections: Sequence[Connection], limit_s: float) -> list[JobFinding]:
    """Probe all connections at the same time, and return the findings in their order.

    Parameters:
        limit_s: how long each may take, in seconds.
    """
    probes = [_Probe(each, limit_s) for each in connections]
    for probe in probes:
        probe.start()
    until_s = stopwatch_s() + limit_s + _SLACK_S
    for probe in probes:
        probe.join(max(0.0, until_s - stopwatch_s()))
    return [finding for probe in probes for finding in probe.findings()]


class _Probe(threading.Thread):
    """A thread that probes one connection. It does not keep the process alive if it hangs."""

    def __init__(self, connection: Connection, limit_s: float) -> None:
        super().__init__(name=f"probe of {connection.where}", daemon=True)
        self._connection, self._limit_s = connection, limit_s
        self._found: list[JobFinding] = []

    def run(self) -> None:
        where, probed, declared, may_misfit = self._connection
        if not isinstance(probed, Probed):
            self._found.append(JobFinding("warning", where, f"not checked: a {type_name(probed)}"))
            return
        try:
            for text in probed.probe(declared, self._limit_s):
                self._found.append(JobFinding("ok", where, without_credentials(text)))
        except CALL_FAILURES as error:
            is_misfit = may_misfit and isinstance(error, ProcessError)
            severity: Severity = "warning" if is_misfit else "error"
            self._found.append(failed_check(where, error, severity))
        if not self._found:
            what = f"not checked: {type_name(probed)} has no probe()"
            self._found.append(JobFinding("warning", where, what))

    def findings(self) -> list[JobFinding]:
        """Return the findings; an error if the probe has not ended."""
        if not self.is_alive():
            return self._found
        what = (
            f"no answer within {self._limit_s:g} s: check its address and the network, or give "
            "more time with --limit"
        )
        return [*self._found, JobFinding("error", self._connection.where, what)]
