"""The plan of a served job as a picture: the operators and inputs that a checkpoint knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from statekit.job.picture import DrawnStream, Node, Picture, laid_out
from statekit.server.dashboard.texts import short_count


def picture_of(operators: Sequence[Mapping[str, Any]], last: Mapping[str, Any]) -> Picture:
    """Lay out the plan of a job.

    Parameters:
        operators: the description of the job.
        last: the counts of the last epoch, by operator.
    """
    nodes = {each["operator"]: _operator(each, last.get(each["operator"])) for each in operators}
    streams = list(_streams(operators, nodes))
    label = "; ".join(
        f"{each['operator']} reads {' and '.join([*each['inputs'], *each['broadcasts']])}"
        for each in operators
    )
    return laid_out(nodes, streams, label)


def _streams(
    operators: Sequence[Mapping[str, Any]], nodes: dict[str, Node]
) -> Iterator[DrawnStream]:
    """Yield the streams of all operators, and add the sources to the nodes."""
    names = {each["operator"] for each in operators}
    for each in operators:
        for stream in [*each["inputs"], *each["broadcasts"]]:
            owner = stream.removesuffix(".late").removesuffix(".errors")
            is_inner = owner in names and owner != each["operator"]
            is_broadcast = stream in each["broadcasts"]
            is_dashed = is_broadcast or (is_inner and owner != stream)
            start = owner if is_inner else f"source {stream}"
            if start not in nodes:
                nodes[start] = Node("source", stream, [stream])
            text = f"{stream}{', to every shard' if is_broadcast else ''}"
            yield DrawnStream(text, start, each["operator"], is_dashed)


def _operator(operator: Mapping[str, Any], last: Mapping[str, Any] | None) -> Node:
    states = len(operator["states"])
    small = f"{states} {'state' if states == 1 else 'states'}"
    if operator["has_timers"]:
        small += ", timers"
    if operator["key"]:
        small = f"by {', '.join(part['name'] for part in operator['key'])}, {small}"
    flow = "no records yet"
    if last:
        flow = f"{short_count(last['records_in'])} in, {short_count(last['records_out'])} out"
    return Node("operator", operator["operator"], [operator["operator"], small, flow])
