"""The file pipeline with an issuer's keys, and the lists of its gateway."""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from hopback.broker import EmbeddedBroker
from hopback.systems.file_pipeline.gateway import gateway
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.storage import FileStorage
from hopback.systems.settings import SettingsError
from hopback.testing import in_virtual_time
from tests.systems.file_pipeline.gateway_client import open_gateway
from tests.systems.file_pipeline.samples import broken_png, png

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.socket

_QUEUES = "/admin/dlq/queues"


def test_storage_receives_reads_and_forgets_files(tmp_path: Path) -> None:
    """A file is received completely or not at all, and taken in once. A thumbnail is replaced completely."""
    storage = FileStorage(tmp_path)
    storage.prepare(time.time())
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    with pytest.raises(FileNotFoundError):
        storage.take_in(first)
    storage.receive(first, io.BytesIO(b"hello world"))
    size, sha256 = storage.take_in(first)
    assert storage.take_in(first) == (size, sha256)
    assert (size, storage.read(first)) == (11, b"hello world")
    storage.receive(second, io.BytesIO(b"half"))
    storage.forget(second)
    for ask in (storage.take_in, storage.read):
        with pytest.raises(FileNotFoundError):
            ask(second)
    assert storage.read_thumbnail(first) is None
    for content in (b"one", b"two"):
        storage.keep_thumbnail(first, content)
        assert storage.read_thumbnail(first) == content
    with pytest.raises(ValueError, match="expected the id of a file"):
        storage.read("../../etc/passwd")


@contextmanager
def _issuer() -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Serve an issuer's key document. Yields its URL, the document and the requested paths."""
    document: dict[str, Any] = {"keys": []}
    requested: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server_thread = threading.Thread(target=server.serve_forever, daemon=True)
    server_thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/certs", document, requested
    finally:
        server.shutdown()
        server.server_close()
        server_thread.join()


def _key(
    kid: str, use: str = "sig", alg: str = "RS256"
) -> tuple[rsa.RSAPrivateKey, dict[str, Any]]:
    """Return a key as Keycloak publishes it, with its certificate and digest."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
    del public["key_ops"]
    certificate = {"x5c": ["MIICmzCCAYMCBgGP"], "x5t": "dGhlIGRpZ2VzdA", "x5t#S256": "ZGlnZXN0"}
    return private, {**public, **certificate, "kid": kid, "use": use, "alg": alg}


def _token(private: rsa.RSAPrivateKey, kid: str, role: str = "admin") -> dict[str, str]:
    """Return an access token with the claims of a Keycloak realm."""
    now = int(time.time())
    claims = {
        "jti": str(uuid.uuid4()),
        "sub": "4f1b0a7e-6d2c-4c89-9a3e-0c2f0a9d6c11",
        "iss": "https://keycloak/realms/files",
        "aud": ["files", "account"],
        "azp": "files-frontend",
        "typ": "Bearer",
        "iat": now,
        "auth_time": now,
        "exp": now + 600,
        "realm_access": {"roles": ["offline_access", "uma_authorization", role]},
        "resource_access": {"account": {"roles": ["admin"]}},
        "scope": "openid email profile",
        "preferred_username": "ann",
    }
    token = jwt.encode(claims, private, "RS256", headers={"kid": kid})
    return {"Authorization": f"Bearer {token}"}


@in_virtual_time
async def test_tokens_signed_by_an_issuers_keys_are_accepted(tmp_path: Path) -> None:
    """As with Keycloak: RS256, realm roles, an encryption key in the set, and key rotation.

    The keys are cached. A token with a new key ID causes a new request. An old key is accepted as
    long as it is published.
    """
    (old, old_public), (new, new_public) = _key("old"), _key("new")
    sealing, sealing_public = _key("sealing", "enc", "RSA-OAEP")
    with _issuer() as (url, document, asked):
        document["keys"] = [sealing_public, old_public]
        options = {
            "jwks_url": url,
            "issuer": "https://keycloak/realms/files",
            "audience": "files",
            "roles_claim": "realm_access.roles",
        }
        async with open_gateway(tmp_path, **options) as web:
            for _ in range(3):
                assert (
                    await web.client.get(_QUEUES, headers=_token(old, "old"))
                ).status_code == 200
            assert len(asked) == 1
            viewer = await web.client.get(_QUEUES, headers=_token(old, "old", "viewer"))
            assert viewer.status_code == 403
            forged = await web.client.get(_QUEUES, headers=_token(new, "old"))
            assert forged.status_code == 401
            with_encryption_key = await web.client.get(_QUEUES, headers=_token(sealing, "sealing"))
            assert with_encryption_key.status_code == 401
            document["keys"] = [sealing_public, new_public, old_public]
            await web.system.test.advance(120)
            for private, kid in ((new, "new"), (old, "old")):
                seen = await web.client.get(_QUEUES, headers=_token(private, kid))
                assert seen.status_code == 200
            assert len(asked) == 2
            document["keys"] = [sealing_public, new_public]
            await web.system.test.advance(600)
            assert (await web.client.get(_QUEUES, headers=_token(new, "new"))).status_code == 200
            assert len(asked) == 3
            gone = await web.client.get(_QUEUES, headers=_token(old, "old"))
            assert gone.status_code == 401


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"jwks_url": "http://keycloak.example.org/certs"}, "https://"),
        ({"jwks_url": "https://k/c", "secret": "s" * 32}, "got both"),
    ],
)
def test_gateway_refuses_wrong_token_settings(
    tmp_path: Path, options: dict[str, str], expected: str
) -> None:
    """The error names the variables."""
    settings = PipelineSettings(folder=tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="ADMIN_JWKS_URL") as error:
        gateway(settings, EmbeddedBroker())
    assert expected in str(error.value)


@in_virtual_time
async def test_file_list_filters_by_status_and_returns_total(tmp_path: Path) -> None:
    """`accepted` is the status before the upload is handled. An unknown status is refused."""
    async with open_gateway(tmp_path) as web:
        for name in ("a.txt", "b.txt"):
            await web.upload_and_settle(b"hello", name, "text/plain")
        page = (await web.client.get("/files?limit=1&status=completed")).json()
        assert (len(page["items"]), page["total"]) == (1, 2)
        web.system.test.broker.cut()
        await web.upload(b"hello", "c.txt", "text/plain")
        accepted = (await web.client.get("/files?status=accepted")).json()
        assert [one["name"] for one in accepted["items"]] == ["c.txt"]
        assert (await web.client.get("/files?status=bogus")).status_code == 400


@in_virtual_time
async def test_files_that_share_a_correlation_id_keep_their_own_events(tmp_path: Path) -> None:
    """Clients choose the ID, so it may occur twice."""
    async with open_gateway(tmp_path) as web:
        shown = []
        for name in ("a.txt", "b.txt"):
            form = {"file": (name, b"hello", "text/plain")}
            same = {"X-Correlation-ID": "same"}
            answer = await web.client.post("/files", files=form, headers=same)
            await web.system.settle()
            shown.append(answer.headers["location"])
        for where in shown:
            events = (await web.client.get(f"{where}/events")).json()["items"]
            assert [one["type"] for one in events] == [
                "FileUploaded.v1",
                "FileValidated.v1",
                "MetadataExtracted.v1",
                "ProcessingCompleted.v1",
            ]


@in_virtual_time
async def test_failed_redrive_notifies_again(tmp_path: Path) -> None:
    """A second ProcessingFailed causes a second notification. After the repair the failure is gone."""
    async with open_gateway(tmp_path) as web:
        failed = await web.upload_and_settle(broken_png(), "a.png", "image/png")
        assert failed["status"] == "failed"
        before = (await web.system.notification_types()).count("ProcessingFailed.v1")
        await web.system.redrive("q.thumbnail")
        await web.system.settle()
        assert (await web.system.notification_types()).count("ProcessingFailed.v1") == before + 1
        assert (await web.system.audit_types()).count("ProcessingFailed.v1") == before + 1
        web.system.folder.file(failed["fileId"]).write_bytes(png())
        for queue in web.system.dead_letter_counts():
            await web.system.redrive(queue)
        await web.client.post(f"/files/{failed['fileId']}/reprocess")
        await web.system.settle()
        repaired = (await web.client.get(f"/files/{failed['fileId']}")).json()
        assert repaired["status"] == "completed", repaired
        assert "failure" not in repaired
        assert repaired["size"] == repaired["metadata"]["size"] == len(png())
        assert repaired["sha256"] == repaired["metadata"]["sha256"]
