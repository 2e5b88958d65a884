"""Create the description of the package for an index, which is the README without relative links.

Relative links in the README refer to files that do not exist on an index. If `project.urls` in
pyproject.toml contains the repository, they become links to it. Otherwise they become text, and a
sentence at the end names the folders of the pages. Hatchling runs this during the build.
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
    """Return the text for an index. If there is a repository, all links point to it."""
    base = repository.rstrip("/")

    def link(found: re.Match[str]) -> str:
        if base:
            kind = "raw" if found["image"] else "blob"
            return f"{found['image']}[{found['text']}]({base}/{kind}/HEAD/{found['target']})"
        return "" if found["image"] else found["text"]

    text = re.sub(r"\n{3,}", "\n\n", _LINK.sub(link, readme))
    return text if base else text + _WHERE


class DescriptionHook(MetadataHookInterface):
    """Adds the description to the metadata of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository", "")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": description(readme, repository),
        }
