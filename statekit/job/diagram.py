"""The plan of a job as a diagram in Mermaid, for Markdown pages and notebooks."""

from __future__ import annotations

from collections.abc import Iterator

from statekit.job.plan import Operator, Plan


def mermaid_of(plan: Plan) -> str:
    """Return the plan of a job as a flow chart of Mermaid: sources, functions, operators with their
    states, sinks, and the streams between them. Dotted lines have late and failed records, and
    records that every shard gets.

    >>> import statekit as sk
    >>> job = sk.Job("shop")
    >>> _ = job.source("orders", dict).sink("archive")
    >>> print(mermaid_of(job))
    flowchart LR
        s0(["orders"])
        k0[/"archive"/]
        s0 --> k0
    """
    return "\n".join(["flowchart LR", *(f"    {line}" for line in _Diagram(plan).lines())])


class _Diagram:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ids = {each.name: f"s{number}" for number, each in enumerate(plan.sources)}
        self._ids |= {each.name: f"t{number}" for number, each in enumerate(plan.transforms)}
        self._ids |= {each.name: f"o{number}" for number, each in enumerate(plan.operators)}
        self._others = {each.late: (each.name, "late") for each in plan.operators}
        self._others |= {each.errors: (each.name, "failed") for each in plan.operators}

    def lines(self) -> Iterator[str]:
        """Yield the lines: nodes, then arrows."""
        for source in self._plan.sources:
            yield f"{self._ids[source.name]}([{_text(source.name)}])"
        for transform in self._plan.transforms:
            text = _text(f"{transform.function.kind} {transform.name}")
            yield f"{self._ids[transform.name]}{{{{{text}}}}}"
        for operator in self._plan.operators:
            yield f"{self._ids[operator.name]}[{_text(*_operator_lines(operator))}]"
        for number, sink in enumerate(self._plan.sinks):
            yield f"k{number}[/{_text(sink.name)}/]"
        yield from self._arrows()

    def _arrows(self) -> Iterator[str]:
        for transform in self._plan.transforms:
            yield self._arrow(transform.input, self._ids[transform.name])
        for operator in self._plan.operators:
            for stream in operator.inputs:
                yield self._arrow(stream, self._ids[operator.name])
            for stream in operator.broadcasts:
                yield self._arrow(stream, self._ids[operator.name], "to every shard")
        for number, sink in enumerate(self._plan.sinks):
            yield self._arrow(sink.stream, f"k{number}")

    def _arrow(self, stream: str, to: str, label: str = "") -> str:
        """Return the arrow of a stream."""
        owner, kind = self._others.get(stream, (stream, label))
        return f"{self._ids[owner]} " + (f"-. {kind} .-> {to}" if kind else f"--> {to}")


def _operator_lines(operator: Operator) -> Iterator[str]:
    yield operator.name
    if operator.declared.key:
        yield f"by {', '.join(operator.declared.key)}"
    for state in operator.declared.states:
        yield f"{state.name}: {state.kind.name}"


def _text(*lines: str) -> str:
    """Return lines as a text of Mermaid."""
    escaped = (
        line.replace("&", "&amp;").replace("<", "&lt;").replace('"', "#quot;") for line in lines
    )
    return f'"{"<br/>".join(escaped)}"'
