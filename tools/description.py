"""The package's description on an index: the README with links that lead somewhere from there too.

The README's links lead to files beside it, which an index does not have. They become links into the
repository if `project.urls` in pyproject.toml names it; until then they are text, and one sentence says
where the pages are. Hatchling runs this when it builds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["DescriptionHook", "description"]

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>(?!https?:|#)[^)\s]+)\)")
_WHERE = (
    "\nThe pages and pictures that this text names are in the folders `docs/` and `benchmarks/` of the source"
    " distribution.\n"
)


def description(readme: str, repository: str = "") -> str:
    """The text for an index; with the address of the repository every link leads into it."""
    base = repository.rstrip("/")

    def link(found: re.Match[str]) -> str:
        if base:
            kind = "raw" if found["image"] else "blob"
            return f"{found['image']}[{found['text']}]({base}/{kind}/HEAD/{found['target']})"
        return "" if found["image"] else found["text"]

    made = re.sub(r"\n{3,}", "\n\n", _LINK.sub(link, readme))
    return made if base else made + _WHERE


class DescriptionHook(MetadataHookInterface):
    """Puts it into the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository", "")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": description(readme, repository),
        }
