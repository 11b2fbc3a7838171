"""Templates: the pages as HTML. Values are escaped, whatever a key or a name contains."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from statekit.job.picture import Picture, cut
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
    named = (texts.count, texts.size, texts.duration, texts.time, texts.json_text, cut)
    others = (texts.value_text, texts.shown_key, charts.sparkline, keys.hint, keys.part_type)
    found.filters.update({each.__name__: each for each in (*named, *others, plan_svg)})
    return found


def plan_svg(picture: Picture, job: str, to: Callable[[str, str], str]) -> Markup:
    """Return the plan of a job as SVG, with links to the pages of its operators.

    Parameters:
        to: returns the address of the page of a job and an operator.
    """
    return Markup(picture.svg(lambda operator: to(job, operator)))


def html(template: str, **context: Any) -> str:
    """Return the HTML of a template."""
    return _environment().get_template(f"{template}.html").render(context)
