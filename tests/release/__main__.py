"""Build, inspect and install the distributions, and write their bill of materials.

`python -m tests.release` runs all steps and leaves sdist, wheel and SBOM in dist/. It needs the
network for the installations. If a step fails, the others still run and the exit status is 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from base64 import urlsafe_b64encode
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.archives import unpack
from tests.release.surface import completeness

if TYPE_CHECKING:
    from collections.abc import Callable
    from email.message import Message as EmailMessage

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
# Percentage of names with types that pyright knows, in the front doors and in all modules.
_MIN_COMPLETENESS = 99.0
_VENDORED = "hopback/ops/page/static/vendor"
_EXTRAS = {"all", "management", "ops", "store"}


class Failed(Exception):
    """A defect of the release."""


def _run(*command: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise Failed(f"`{' '.join(map(str, command))}`: {(ran.stdout + ran.stderr)[-2000:]}")
    return ran.stdout


def _need(condition: bool, text: str) -> None:
    if not condition:
        raise Failed(text)


class Release:
    """The distributions of this tree and the steps that check them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.epoch = _run("git", "log", "-1", "--format=%ct").strip()
        self.wheel = Path()
        self.sdist = Path()

    def build(self) -> str:
        """Sdist and wheel are reproducible in another folder, time zone and with other permissions."""
        first = self._build(ROOT, self.folder / "first")
        copy = self.folder / "copy"
        names = _run("git", "ls-files", "--cached", "--others", "--exclude-standard").split("\n")
        for name in filter(None, names):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, copy / name)
                executable = (ROOT / name).stat().st_mode & 0o100
                (copy / name).chmod(0o600 | executable)
        second = self._build(copy, self.folder / "second", zone="Asia/Tokyo", umask="077")
        for name, content in first.items():
            _need(second.get(name) == content, f"{name} differs between two builds")
        from_sdist = self._build(self._unpack(), self.folder / "third")
        _need(
            from_sdist[self.wheel.name] == first[self.wheel.name],
            "the wheel built from the sdist differs",
        )
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for path in (self.wheel, self.sdist):
            shutil.copy(path, DIST)
        sizes = ", ".join(
            f"{path.name} {path.stat().st_size // 1024} KiB" for path in DIST.iterdir()
        )
        return f"three identical builds: {sizes}"

    def _build(
        self, tree: Path, out: Path, *, umask: str = "022", zone: str = "UTC"
    ) -> dict[str, str]:
        build = (
            f"umask {umask} && exec {sys.executable} -m build --no-isolation --outdir {out} {tree}"
        )
        _run("sh", "-c", build, environment={"SOURCE_DATE_EPOCH": self.epoch, "TZ": zone})
        if not self.wheel.name:
            (self.wheel,) = out.glob("*.whl")
            (self.sdist,) = out.glob("*.tar.gz")
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}

    def _unpack(self) -> Path:
        with tarfile.open(self.sdist) as archive:
            unpack(archive, self.folder / "unpacked")
        (tree,) = (self.folder / "unpacked").iterdir()
        return tree

    def metadata(self) -> str:
        """Name, version, licence, Python and extras are present. CHANGELOG.md begins with the version."""
        found = self._metadata()
        version = found["Version"]
        newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        _need(
            newest is not None and newest[1] == version,
            f"CHANGELOG.md does not start with {version}",
        )
        _need(found["Requires-Python"] == ">=3.11", f"Requires-Python {found['Requires-Python']}")
        _need(
            found["Description-Content-Type"] == "text/markdown", "the description is not Markdown"
        )
        description = str(found.get_payload())
        _need(description.startswith("# Hopback"), "the description is not the README")
        lost = re.findall(r"\]\((?!https?:|#)[^)]+\)", description)
        _need(not lost, f"the description links to files that are missing on an index: {lost}")
        _need(set(found.get_all("Provides-Extra") or ()) >= _EXTRAS, "extras are missing")
        _need(
            "Typing :: Typed" in (found.get_all("Classifier") or ()),
            "the classifier for types is missing",
        )
        return f"{found['Name']} {version}, {found['License-Expression']}"

    def _metadata(self) -> EmailMessage:
        return Parser().parsestr(self._read("METADATA"))

    def _read(self, name: str) -> str:
        with zipfile.ZipFile(self.wheel) as archive:
            (path,) = (each for each in archive.namelist() if each.endswith(f".dist-info/{name}"))
            return archive.read(path).decode()

    def contents(self) -> str:
        """The wheel contains only the package, and RECORD has the hash of each file."""
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            record = [line.rsplit(",", 2) for line in self._read("RECORD").splitlines()]
            for name, recorded, _ in record:
                if recorded:
                    digest = hashlib.sha256(archive.read(name)).digest()
                    real = "sha256=" + urlsafe_b64encode(digest).rstrip(b"=").decode()
                    _need(recorded == real, f"RECORD has another hash for {name}")
        tops = {name.split("/")[0] for name in names}
        _need(len(tops) == 2 and "hopback" in tops, f"the wheel also contains {tops - {'hopback'}}")
        _need("hopback/py.typed" in names, "py.typed is missing")
        _need({name for name, _, _ in record} == set(names), "RECORD does not list every file")
        return f"{len(names)} files"

    def licences(self) -> str:
        """The manifest names all bundled files. Their licences are in the wheel and its metadata."""
        expression = self._metadata()["License-Expression"]
        licences = {Path(name).name for name in self._metadata().get_all("License-File") or ()}
        with zipfile.ZipFile(self.wheel) as archive:
            names = set(archive.namelist())
            assets = tomllib.loads(archive.read(f"{_VENDORED}/manifest.toml").decode())["asset"]
        scripts = {name for name in names if name.endswith((".min.js", ".woff", ".woff2", ".ttf"))}
        _need(
            scripts == {f"{_VENDORED}/{one['file']}" for one in assets},
            f"bundled, but not in the manifest: {scripts}",
        )
        for one in assets:
            _need(
                one["licence"] in re.split(r" AND ", expression),
                f"{expression} lacks {one['licence']}",
            )
            _need(
                one["licence_file"] in licences, f"{one['licence_file']} is missing in the metadata"
            )
        _need("LICENSE" in licences, "the project's licence is missing")
        return f"{expression}: {', '.join(one['name'] for one in assets)}"

    def install(self) -> str:
        """The command runs from the wheel with all extras as pinned and from the sdist alone."""
        wheel = self._environment("wheel")
        pins = ROOT / "tools" / "pins" / "all.txt"
        _run(wheel, "-m", "pip", "install", "-q", "--require-hashes", "-r", pins)
        _run(wheel, "-m", "pip", "install", "-q", "--no-deps", self.wheel)
        sdist = self._environment("sdist")
        _run(sdist, "-m", "pip", "install", "-q", self.sdist)
        for python in (wheel, sdist):
            _run(python, "-m", "pip", "check")
            version = _run(python.with_name("hopback"), "--version", cwd=self.folder).split()[-1]
            _need(version == self._metadata()["Version"], f"the command reports {version}")
            _run(python, "-W", "error", "-c", _IMPORT_FRONT_DOORS, cwd=self.folder)
            _run(python.with_name("hopback"), "topology", "check", "recommended", cwd=self.folder)
        return "both run"

    def _environment(self, name: str) -> Path:
        folder = self.folder / "environments" / name
        _run(sys.executable, "-m", "venv", folder)
        return folder / "bin" / "python"

    def typing(self) -> str:
        """pyright knows the types of the public names."""
        python = self.folder / "environments" / "wheel" / "bin" / "python"
        _need(python.exists(), "the wheel is not installed")
        found = completeness(python)
        lowest = min(found.percent, found.everything)
        _need(lowest >= _MIN_COMPLETENESS, f"{found}: {', '.join(found.unknown)}")
        return str(found)

    def bill(self) -> str:
        """Write a CycloneDX bill of the wheel with all extras and of the bundled files."""
        python = self.folder / "environments" / "wheel" / "bin" / "python"
        path = DIST / f"hopback-{self._metadata()['Version']}.cdx.json"
        _run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", python, "--output-reproducible"),
            *(
                "--pyproject",
                ROOT / "pyproject.toml",
                "--mc-type",
                "library",
                "--of",
                "JSON",
                "-o",
                path,
            ),
        )
        bill = json.loads(path.read_text())
        with zipfile.ZipFile(self.wheel) as archive:
            assets = tomllib.loads(archive.read(f"{_VENDORED}/manifest.toml").decode())["asset"]
        # Remove the locations of packages on this machine.
        for one in bill["components"]:
            one.pop("externalReferences", None)
        bill["components"] += [
            {
                "type": "library",
                "bom-ref": f"pkg:npm/{one['name']}@{one['version']}",
                "name": one["name"],
                "version": one["version"],
                "purl": f"pkg:npm/{one['name']}@{one['version']}",
                "licenses": [{"license": {"id": one["licence"]}}],
                "hashes": [{"alg": "SHA-256", "content": one["sha256"]}],
            }
            for one in assets
        ]
        path.write_text(json.dumps(bill, indent=2) + "\n")
        names = {one["name"] for one in bill["components"]}
        _need(
            {"click", "msgspec", "starlette", "htmx.org"} <= names, f"{path.name} lacks components"
        )
        _need(
            str(self.folder) not in path.read_text(), f"{path.name} names a folder of this machine"
        )
        return f"{path.name}: {len(names)} components"


_IMPORT_FRONT_DOORS = (
    "import importlib\n"
    "for door in ('hopback', 'hopback.broker', 'hopback.ops', 'hopback.runtime',"
    " 'hopback.topology'):\n"
    "    package = importlib.import_module(door)\n"
)


def main() -> int:
    """Run every step and print its result. Return 1 if one failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        release = Release(Path(folder))
        steps: list[Callable[[], str]] = [
            release.build,
            release.metadata,
            release.contents,
            release.licences,
            release.install,
            release.typing,
            release.bill,
        ]
        for step in steps:
            started = time.monotonic()
            try:
                result = f"ok     {step()}"
            except Failed as wrong:
                failed, result = 1, f"FAILED {wrong}"
            print(f"{step.__name__:10} {time.monotonic() - started:5.0f} s  {result}", flush=True)  # noqa: T201
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
