"""Build the documentation site in build/site: `make docs`. Each version has its own folder.

The versions are independent. All pages read `versions.js` in the parent folder, which is updated at
each build. A new build does not change older versions. All pages can also be opened as files.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"


def build(site: Path = SITE, version: str = "") -> Path:
    """Build this version and return the folder of its pages. Raises SystemExit with the errors of
    pages.
    """
    from mkdocs.commands.build import build as write
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    if not version:
        from hopback import __version__ as version
    folder = site / version
    # Hide Material's announcement of its successor.
    os.environ["NO_MKDOCS_2_WARNING"] = "true"
    logging.getLogger("mkdocs").addHandler(logging.StreamHandler())
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    try:
        config = load_config(str(Path(__file__).with_name("mkdocs.yml")), site_dir=str(folder))
        config.extra["version_name"] = version
        write(config)
    except Abort as error:
        raise SystemExit(f"the site was not built: {error}") from None
    _list_versions(site)
    return folder


def _list_versions(site: Path) -> None:
    """Write the list of versions, and a page that redirects to the newest one."""
    found = sorted(
        (path.name for path in site.iterdir() if (path / "index.html").exists()),
        key=lambda name: [(not part.isdigit(), part.zfill(9)) for part in re.split(r"[.]", name)],
        reverse=True,
    )
    (site / "versions.js").write_text(f"window.hopbackVersions = {json.dumps(found)};\n")
    (site / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>Hopback</title>'
        f'<meta http-equiv="refresh" content="0; url={found[0]}/index.html">'
        f'<a href="{found[0]}/index.html">Hopback {found[0]}</a>\n'
    )


if __name__ == "__main__":
    print(f"built {build(Path(sys.argv[1]) if sys.argv[1:] else SITE) / 'index.html'}")
