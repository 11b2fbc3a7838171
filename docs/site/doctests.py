"""Examples of docstrings as code blocks."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class FencedDoctests(Extension):
    """Puts each example of a docstring into a fence, as Markdown wants it."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of a class, function or attribute that was read."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = _fenced(obj.docstring.value)


def _fenced(text: str) -> str:
    lines: list[str] = []
    is_example = False
    for line in text.split("\n"):
        if not is_example and line.lstrip().startswith(">>>"):
            lines += ["", "```pycon"]
            is_example = True
        elif is_example and not line.strip():
            lines.append("```")
            is_example = False
        lines.append(line)
    return "\n".join([*lines, "```"] if is_example else lines)
