"""Templates: the pages as HTML. Values are escaped, whatever a key or a name contains."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from statekit.server.dashboard import charts, keys, texts


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("statekit.server.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    named = (texts.count, texts.size, texts.duration, texts.time, texts.json_text, texts.cut)
    others = (texts.value_text, texts.shown_key, charts.sparkline, keys.hint, keys.part_type)
    found.filters.update({each.__name__: each for each in (*named, *others)})
    return found


def html(template: str, **context: Any) -> str:
    """Return the HTML of a template."""
    return _environment().get_template(f"{template}.html").render(context)
