"""Build the documentation site: `make docs`. It lies in build/site, a folder for each version.

Nothing of a version knows of the others: each page reads `versions.js` above its folder, which is written
anew here. So a version that was built once is never touched again, and all of it works from files.
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
    """Build this version; the folder of its pages. SystemExit names what is wrong with a page."""
    from mkdocs.commands.build import build as write
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    if not version:
        from hopback import __version__ as version
    folder = site / version
    # Material announces its successor on every build; that is no news to whoever reads this output.
    os.environ["NO_MKDOCS_2_WARNING"] = "true"
    logging.getLogger("mkdocs").addHandler(logging.StreamHandler())
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    try:
        config = load_config(str(Path(__file__).with_name("mkdocs.yml")), site_dir=str(folder))
        config.extra["version_name"] = version
        write(config)
    except Abort as wrong:
        raise SystemExit(f"the site was not built: {wrong}") from None
    _list_versions(site)
    return folder


def _list_versions(site: Path) -> None:
    """What the pages of all versions read, and the page that leads to the newest."""
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
