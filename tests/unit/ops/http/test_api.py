"""The OpenAPI document and the vendored files."""

from __future__ import annotations

import hashlib
import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from hopback.ops.http.app import ENDPOINTS
from tests.architecture.source import ROOT
from tests.unit.ops.admin_service import admin

if TYPE_CHECKING:
    from pathlib import Path

_VENDORED = (
    ROOT / "src" / "hopback" / "ops" / "page" / "static" / "vendor",
    ROOT / "tests" / "acceptance" / "vendor",
)


async def test_openapi_lists_every_endpoint_and_its_references_resolve() -> None:
    async with admin() as service:
        document = (await service.client.get("/openapi.json")).json()
    listed = {(method.upper(), path) for path, row in document["paths"].items() for method in row}
    assert {(row.method, row.path) for row in ENDPOINTS} <= listed
    names = set(re.findall(r'"#/components/schemas/(\w+)"', str(document).replace("'", '"')))
    assert names <= set(document["components"]["schemas"])
    operations = [
        each["operationId"] for row in document["paths"].values() for each in row.values()
    ]
    assert len(operations) == len(set(operations))


async def test_response_has_exactly_the_fields_of_its_schema() -> None:
    async with admin() as service:
        document = (await service.client.get("/openapi.json")).json()
        me = (await service.client.get("/admin/me")).json()
    schema: dict[str, Any] = document["components"]["schemas"]["MeAnswer"]
    assert set(me) == set(schema["properties"])


@pytest.mark.parametrize("folder", _VENDORED, ids=["page", "tests"])
def test_vendored_files_match_manifest(folder: Path) -> None:
    """Name, version, licence and hash are compared."""
    assets = tomllib.loads((folder / "manifest.toml").read_text())["asset"]
    for asset in assets:
        assert {"name", "version", "licence"} <= set(asset)
        content = (folder / asset["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == asset["sha256"], asset["file"]
        assert asset.get("says", asset["version"]) in _versions(asset["name"], content.decode())
        assert (folder / asset["licence_file"]).stat().st_size > 0
    named = {asset[key] for asset in assets for key in ("file", "licence_file")}
    assert {path.name for path in folder.iterdir()} == {"manifest.toml", *named}


def _versions(name: str, content: str) -> set[str]:
    """The versions that a script names in its banner or gives itself."""
    banner = rf"{re.escape(name)} v?(\d+\.\d+\.\d+)"
    given = r"version[\"']?\s*[:=]\s*[\"'](\d+\.\d+\.\d+)"
    return {*re.findall(banner, content), *re.findall(given, content)}
