"""An authority and a certificate of it, made by openssl once for each file of tests."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["certificates"]


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a certificate of it for `localhost`, good for server and client."""
    folder = tmp_path_factory.mktemp("tls")
    (folder / "ext").write_text("subjectAltName=DNS:localhost\n")
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out csr.pem",
        "x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext"
        " -out cert.pem",
    ):
        _openssl(folder, *words.split())
    return folder
