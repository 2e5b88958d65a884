"""Settings that a root takes from this machine: how pip, npm and apt reach their packages.

A machine may have its own mirrors, proxies and certificates. They are copied into the root without
change and are not stored elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

__all__ = ["environment", "folders", "pass_in"]

_VARIABLES = re.compile(
    r"PIP_\w+|npm_config_\w+|\w+_proxy|SSL_CERT_(FILE|DIR)|\w+_CA_(BUNDLE|CERTS)|WORKERS",
    re.IGNORECASE,
)
_HOME = Path.home()
_FILES = (
    Path("/etc/resolv.conf"),
    Path("/etc/hosts"),
    Path("/etc/pip.conf"),
    Path("/etc/npmrc"),
    Path("/etc/apt/auth.conf"),
    Path("/etc/apt/auth.conf.d"),
    Path("/usr/local/share/ca-certificates"),
    _HOME / ".config/pip/pip.conf",
    _HOME / ".pip/pip.conf",
    _HOME / ".npmrc",
)
_PATH = re.compile(r"(?<![\w.])/[\w./+-]+")
# Settings of every apt, and settings for desktops and drives.
_APT_DEFAULTS = (
    "Acquire::IndexTargets",
    "Acquire::CompressionTypes",
    "Acquire::Changelogs",
    "Acquire::cdrom",
)


def environment() -> dict[str, str]:
    """Return the only variables of processes in the root."""
    passed = {name: text for name, text in os.environ.items() if _VARIABLES.fullmatch(name)}
    return {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "TERM": "dumb",
        **passed,
    }


def pass_in(root: Path) -> None:
    """Copy the package settings and the certificates that they name."""
    for path in _FILES:
        if path.exists():
            _copy(path, root / _inside(path).relative_to("/"))
    for path in _find_paths():
        if path.is_file():
            _copy(path, root / path.relative_to("/"))
    dumped = subprocess.run(
        ["apt-config", "dump", "--no-empty", "Acquire"], capture_output=True, text=True, check=True
    ).stdout
    kept = [line for line in dumped.splitlines() if not line.startswith(_APT_DEFAULTS)]
    (root / "etc/apt/apt.conf.d/90host").write_text("\n".join(kept) + "\n")


def folders(root: Path) -> list[Path]:
    """Return package folders that the settings name and the root lacks, for read-only mounts."""
    found = {
        path
        for path in _find_paths()
        if path.is_dir() and not (root / path.relative_to("/")).exists()
    }
    # The files of an index are in the folder above its listing.
    return sorted({path.parent if path.name == "simple" else path for path in found})


def _find_paths() -> set[Path]:
    """Return every path of this machine that the settings name."""
    texts = [text for name, text in environment().items() if name not in ("PATH", "HOME")]
    settings = (path for path in _FILES if path.name in ("pip.conf", "npmrc", ".npmrc"))
    texts += [path.read_text(encoding="utf-8") for path in settings if path.is_file()]
    found = (Path(name) for text in texts for name in _PATH.findall(text.replace("file://", "")))
    return {path for path in found if path.exists() and path != Path("/")}


def _inside(path: Path) -> Path:
    """Return the path of a host file in the root, whose only user is root."""
    return Path("/root") / path.relative_to(_HOME) if path.is_relative_to(_HOME) else path


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, target)
