"""How the documents become a site: the navigation follows from the index, Markdown of the forge is
read as it is meant there, and pages of the reference are generated from the code.
"""

from __future__ import annotations

import importlib
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from statekit.state.base import State
from statekit.testing import models

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_LISTED = re.compile(r"^- \[(.*?)\]\(([^)#]+)\)", re.MULTILINE)

OTHERS = {"README.md": "overview.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
"""Pages of the repository outside of `docs`, and where they are in the site."""

MODULES = {
    "statekit": "Jobs and states",
    "statekit.sources": "Sources",
    "statekit.sinks": "Sinks",
    "statekit.testing": "Testing",
    "statekit.query": "Reading state",
    "statekit.spark": "Spark",
}
"""What the reference of the API has pages of."""


FOUND_FIRST = {"start/": 4, "how-to/": 4, "guide/": 4, "operate/": 4, "explain/": 2}
FOUND_LAST = {"reference/api/": 0.5, "decisions/": 0.2, "internals/": 0.2, "benchmarks/": 0.2}
"""How much the search prefers pages whose path begins so; others have 1. People who search have a
task, and long pages about decisions would be found first."""

SEARCHED = {
    "guide/bootstrap.md": "backfill migrate",
    "guide/errors.md": "dead letter queue dlq",
    "guide/evolution.md": "schema evolution change type of state add field",
    "guide/per-key.md": "top n rank dropDuplicates duplicates",
    "guide/replay.md": "replay",
    "guide/services.md": "http api call async",
    "guide/sinks.md": "foreachBatch",
    "guide/sources.md": "bad records",
    "guide/sources-files.md": "read json csv parquet",
    "guide/sources-history.md": "backfill",
    "guide/windows.md": "sessions session window tumbling sliding",
    "operate/job-server.md": "submit job",
    "operate/rescaling.md": "rescale parallelism scale",
    "operate/rollback.md": "rollback",
    "operate/running-jobs.md": "exit code cron schedule availableNow",
    "operate/serving.md": "serve rest api queryable",
}
"""Words with which people search a page, and that its title in the index does not have."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation from the parts of `docs/README.md` and the pages that they list."""
    config.nav = [{"Home": "README.md"}, *map(_part, _parts())]
    config.watch.append(str(ROOT / "statekit"))
    return config


def _parts() -> Iterator[tuple[str, list[Any]]]:
    """Yield the title of each part of the index, and its pages with their titles, in groups."""
    for part in (DOCS / "README.md").read_text().split("\n## ")[1:]:
        first, *groups = part.split("\n### ")
        yield (
            part.partition("\n")[0],
            [*_pages(first), *({group.partition("\n")[0]: _pages(group)} for group in groups)],
        )


def _pages(text: str) -> list[dict[str, str]]:
    listed = ((name, _in_site(link)) for name, link in _LISTED.findall(text))
    return [{name: page} for name, page in listed if page != "examples.md"]


def _words(page: str) -> list[str]:
    """Return the words of a page's title in the index, and the others that people search."""
    listed = _LISTED.findall((DOCS / "README.md").read_text())
    title = next((name for name, link in listed if _in_site(link) == page), "")
    return sorted({*re.findall(r"\w+", f"{title} {SEARCHED.get(page, '')}".lower())})


def _part(part: tuple[str, list[Any]]) -> dict[str, Any]:
    title, own = part
    if title == "Start":
        programs = [f"examples/{path.stem}.md" for path in _programs()]
        own = [{"Overview": OTHERS["README.md"]}, *own, {"Examples": ["examples.md", *programs]}]
    if title == "Reference":
        own += [{"Commands": "reference/commands.md"}, {"API": [_api_page(of) for of in MODULES]}]
        own += [{"Changes": OTHERS["CHANGELOG.md"]}, {"Security": OTHERS["SECURITY.md"]}]
    if title == "Internals":
        decisions = sorted((DOCS / "decisions").glob("0*.md"))
        own.append({"Decisions": [f"decisions/{path.name}" for path in decisions]})
    return {title: own}


def _api_page(module: str) -> dict[str, str]:
    return {MODULES[module]: f"reference/api/{module}.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs`, and those that follow from the code."""
    for name, page in OTHERS.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    files.append(
        File.generated(config, "examples.md", content=(ROOT / "examples/README.md").read_text())
    )
    for path in _programs():
        text = f"# {path.name}\n\n```python\n{path.read_text()}```\n"
        files.append(File.generated(config, f"examples/{path.stem}.md", content=text))
    files.append(File.generated(config, "reference/commands.md", content=_commands()))
    for module, title in MODULES.items():
        text = f"# {title}\n\n`{module}`\n\n{_members(module)}"
        files.append(File.generated(config, f"reference/api/{module}.md", content=text))
    for asset in sorted((DOCS / "site" / "assets").iterdir()):
        files.append(File.generated(config, f"assets/{asset.name}", content=asset.read_bytes()))
    return files


def _programs() -> list[Path]:
    return [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem != "__init__"]


def _members(module: str) -> str:
    """Return a page with the public names of a module."""
    names = sorted(importlib.import_module(module).__all__)
    is_module = {name for name in names if f"{module}.{name}" in MODULES or name.startswith("__")}
    return "".join(_member(module, name) for name in names if name not in is_module)


def _member(module: str, name: str) -> str:
    """Return the part of a page about one public name.

    Of a class of states, it has what functions call: the names that its model for tests has, too.
    The others are those of the runtime.
    """
    cls = getattr(importlib.import_module(module), name)
    bases = cls.__mro__ if isinstance(cls, type) and issubclass(cls, State) else ()
    of_model = (base.__name__.replace("State", "Model") for base in bases)
    model = next((getattr(models, each) for each in of_model if each in models.__all__), None)
    if model is None:
        return f"::: {module}.{name}\n\n"
    shared = {*dir(cls)} & {*dir(model)} - {*dir(State)}
    called = sorted(each for each in shared if not each.startswith("_"))
    return f"::: {module}.{name}\n    options:\n      members: [{', '.join(called)}]\n\n"


def _commands() -> str:
    """Return the page of the commands."""
    words = [sys.executable, "-m", "typer", "statekit.cli.app", "utils", "docs"]
    done = subprocess.run(
        [*words, "--name", "statekit"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return re.sub(r"^# `statekit`", "# Commands", done.stdout)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change what the forge and the site read differently: lists and tables right after a line,
    and links to files that are no pages. Set the rank of the page in the search.
    """
    own = page.file.src_uri
    boosts = (FOUND_FIRST | FOUND_LAST).items()
    page.meta["search"] = {"boost": next((n for of, n in boosts if own.startswith(of)), 1)}
    page.meta["tags"] = _words(own)
    source = next((name for name, of in OTHERS.items() if of == own), None)
    source = "examples/README.md" if own == "examples.md" else source
    at = f"docs/{own}" if source is None else source
    if source is not None:
        markdown = markdown.replace('"docs/images/', '"images/')
    lines = []
    fence, before = "", ""
    for line in markdown.split("\n"):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            begins = _ITEM.match(line) or line.startswith("|")
            same = _ITEM.match(before) or before.startswith((" ", "|"))
            if begins and before and not same and not before.startswith("|"):
                lines.append("")
            line = _LINK.sub(lambda link: _link(link, at, own, files), line)
        lines.append(line)
        before = line
    return "\n".join(lines)


def _link(link: re.Match[str], at: str, own: str, files: Files) -> str:
    """Return a link as the site has it, or its text if there is no page for it."""
    text, target = link[1], link[2]
    if re.match(r"[a-z]+:|#", target):
        return link[0]
    path, _, place = target.partition("#")
    found = posixpath.normpath(posixpath.join(posixpath.dirname(at), path))
    page = _page_of(found)
    if page is None or files.get_file_from_path(page) is None:
        return text
    relative = posixpath.relpath(page, posixpath.dirname(own) or ".")
    return f"[{text}]({relative}{f'#{place}' if place else ''})"


def _in_site(link: str) -> str:
    """Return the page of the site that a link of the index leads to."""
    found = posixpath.normpath(posixpath.join("docs", link))
    return _page_of(found) or found


def _page_of(path: str) -> str | None:
    """Return the page of a file of the repository; None if it has none."""
    if path in OTHERS:
        return OTHERS[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "examples/README.md":
        return "examples.md"
    if path.startswith("examples/") and path.endswith(".py"):
        return path.removesuffix(".py") + ".md"
    return None
