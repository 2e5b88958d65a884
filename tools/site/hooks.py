"""Convert the pages of the repository to a site.

The links of the pages refer to files, so that they work in the repository. These hooks create the
navigation from docs/README.md, and pages from the docstrings of the front doors. They also add
linked pages and files outside of docs/, such as examples, benchmarks and the READMEs of the
systems.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HERE = Path(__file__).parent
ALL_PAGES = "pages.md"  # the page of docs/README.md, because index.html is the landing page
_PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# The sections of docs/README.md and their tabs.
_TABS = {
    "Tutorials": "Tutorial",
    "How-to guides": "How-to",
    "Reference": "Reference",
    "Explanation": "Explanation",
}
DOORS = {
    "hopback": "The names that a service module imports.",
    "hopback.runtime": "The runtime of services.",
    "hopback.broker": "The port to a broker, and the embedded broker.",
    "hopback.topology": "Queues, exchanges, bindings and failure plans as data.",
    "hopback.store": "Inbox, outbox and their database. It needs the extra `store`.",
    "hopback.observe": "Events and their subscribers.",
    "hopback.errors": "The exceptions that Hopback raises.",
    "hopback.ops": "Dead letters: looking, re-driving, discarding.",
    "hopback.testing": "The test kit.",
}
# These modules are front doors as well, and their page starts with their docstring. They export
# more names than programs need, so these names are listed here. The methods below are only called
# by other modules.
_INTEGRATIONS = {
    "hopback.integrations.faststream": ("FastStreamPlans",),
    "hopback.integrations.aio_pika": ("AioPikaPlans", "PlannedMessage"),
    "hopback.integrations.pika": ("PikaPlans", "PlannedChannel"),
    "hopback.integrations.celery": ("park_failed_tasks", "check_settings"),
    "hopback.integrations.planned": ("PlanOptions",),
}
_BETWEEN_MODULES = ("begin", "conclude", "run", "taken")
_LINK = re.compile(r"(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Create the navigation."""
    tabs: dict[str, list[Any]] = {}
    for section, group, title, target in _page_links():
        path = _source(DOCS, target)
        if path is not None and path.endswith(".md") and not path.startswith("src/"):
            pages = tabs.setdefault(_TABS[section], [])
            if group and (not pages or group not in pages[-1]):
                pages.append({group: []})
            (pages[-1][group] if group else pages).append({title: path})
    tabs["Tutorial"].insert(0, {"All pages": ALL_PAGES})
    systems_folder = ROOT / "src" / "hopback" / "systems"
    systems = [systems_folder / "README.md", *sorted(systems_folder.glob("*/README.md"))]
    tabs["Tutorial"].append(
        {"The five systems": [{_title(path): str(path.relative_to(ROOT))} for path in systems]}
    )
    config.nav = [
        {"Home": "index.md"},
        *({name: pages} for name, pages in tabs.items()),
        {"Python": _doors()},
        {"Project": [path for path in _PROJECT if (ROOT / path).exists()] + _benchmarks()},
    ]
    return config


def _doors() -> list[object]:
    modules = [{door.rpartition(".")[2]: f"api/{door}.md"} for door in _INTEGRATIONS]
    return [*({door: f"api/{door}.md"} for door in DOORS), {"hopback.integrations": modules}]


def _page_links() -> Iterator[tuple[str, str, str, str]]:
    """Yield the section, group, title and target of all links in the list of pages. Each target is
    only listed once.
    """
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    seen: set[str] = set()
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        section, _, rest = part.partition("\n")
        for chunk in re.split(r"^### ", "\n" + rest, flags=re.MULTILINE):
            group, _, links = chunk.partition("\n")
            for link in _LINK.finditer(links):
                target = link["target"].partition("#")[0]
                title = link["text"][1:-1].replace("`", "")
                if target not in seen and "://" not in target and target != "index.md":
                    seen.add(target)
                    yield section, group, title[:1].upper() + title[1:], target


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _benchmarks() -> list[object]:
    found = sorted((ROOT / "benchmarks").glob("*.md"))
    return [{f"Benchmarks: {path.stem.title()}": f"benchmarks/{path.name}"} for path in found]


def _source(folder: Path, target: str) -> str | None:
    """Return the name that a link target has on the site, or None if it is not a file."""
    path = (folder / target).resolve()
    if path == DOCS / "README.md":
        return ALL_PAGES
    if not path.is_file() or not path.is_relative_to(ROOT):
        return None
    return str(path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add linked files outside of docs/, the vendored scripts, and the pages with docstrings."""
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, ALL_PAGES, content=text))
    for door in (*DOORS, *_INTEGRATIONS):
        files.append(File.generated(config, f"api/{door}.md", content=_door(door)))
    for folder, path in (
        *(("vendor", path) for path in (HERE / "vendor").iterdir()),
        *(("assets", path) for path in (HERE / "assets").iterdir()),
        ("assets", ROOT / "src" / "hopback" / "ops" / "page" / "static" / "mark.svg"),
    ):
        files.append(File.generated(config, f"{folder}/{path.name}", abs_src_path=str(path)))
    for name in sorted(_outside(files)):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def _outside(files: Files) -> set[str]:
    """Return all files of the repository to which pages link, directly or indirectly."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages() if not file.generated_by]
    waiting += [ROOT / name for name in _PROJECT] + sorted((ROOT / "benchmarks").glob("*.md"))
    waiting.append(DOCS / "README.md")
    found: set[str] = set()
    while waiting:
        page = waiting.pop()
        if not page.is_relative_to(DOCS):
            found.add(str(page.relative_to(ROOT)))
        for link in _LINK.finditer(_FENCED.sub("", page.read_text(encoding="utf-8"))):
            target = link["target"].partition("#")[0]
            name = _source(page.parent, target) if target and "://" not in target else None
            if name is None or name == ALL_PAGES or (DOCS / name).exists() or name in found:
                continue
            found.add(name)
            if name.endswith(".md"):
                waiting.append(ROOT / name)
    return found


def _door(door: str) -> str:
    """Return the page of a front door. Each object is described on the first page that contains it."""
    earlier: dict[int, str] = {}
    for other, name in _before(door):
        earlier.setdefault(id(getattr(import_module(other), name)), other)
    package = import_module(door)
    own, constants, elsewhere = [], [], []
    hidden = "|".join(_BETWEEN_MODULES)
    options = (
        f"    options:\n      filters: ['!^_', '!^({hidden})$']\n" if door in _INTEGRATIONS else ""
    )
    for name in _shown(door):
        found = getattr(package, name)
        if name.startswith("__"):
            continue
        home = earlier.get(id(found))
        if not (inspect.isclass(found) or inspect.isroutine(found)):
            constants.append(f"::: {door}.{name}\n")
        elif home is not None:
            elsewhere.append(f"[`{name}`][{home}.{name}]")
        else:
            # A function with the name of its module is found in that module.
            place = found.__module__ if f"{door}.{name}" in sys.modules else door
            own.append(f"::: {place}.{name}\n{options}")
    also = f"\nAlso here: {', '.join(elsewhere)}.\n" if elsewhere else ""
    about, _, more = (DOORS.get(door) or inspect.getdoc(package) or "").partition("\n")
    return f"# `{door}`\n\n{about} `from {door} import …`\n{also}{more}\n\n" + "\n".join(
        own + constants
    )


def _before(door: str) -> Iterator[tuple[str, str]]:
    for other in (*DOORS, *_INTEGRATIONS):
        if other == door:
            return
        for name in _shown(other):
            yield other, name


def _shown(door: str) -> tuple[str, ...]:
    """Return the names that the page of a front door contains."""
    return _INTEGRATIONS.get(door) or tuple(import_module(door).__all__)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between docs/ and other folders, so that they refer to the same page on the
    site.
    """
    uri = page.file.src_uri
    if uri.startswith("api/"):
        page.meta["search"] = {"boost": 0.1}  # searches list the guides first
        return markdown
    real = DOCS / "README.md" if uri == ALL_PAGES else DOCS / uri
    folder = (real if real.exists() else ROOT / uri).parent

    def rewrite(link: re.Match[str]) -> str:
        target, sign, anchor = link["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return link[0]
        name = _source(folder, target)
        if name is None:  # folders of the repository have no page
            return link["text"][1:-1]
        up = "../" * (uri.count("/"))
        return f"{link['text']}({up}{name}{sign}{anchor})"

    parts = []
    end = 0
    for block in _FENCED.finditer(markdown):
        parts += [_LINK.sub(rewrite, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join((*parts, _LINK.sub(rewrite, markdown[end:])))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Remove the large script for drawings from pages that have none."""
    if 'class="drawing"' in output:
        return output
    return re.sub(r'\s*<script src="[^"]*(mermaid\.tiny|drawings)\.js"></script>', "", output)
