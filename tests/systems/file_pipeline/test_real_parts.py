"""The file pipeline with real parts behind its ports: S3, SMTP and an issuer's keys.

The servers are other people's: moto's S3 and aiosmtpd. The issuer serves its keys by HTTP.
"""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from hopback.systems.file_pipeline.contents import Rejection
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.storage import Folder, S3Storage
from hopback.systems.settings import SettingsError
from hopback.testing import in_virtual_time
from tests.systems.file_pipeline.front_door import front_door
from tests.systems.file_pipeline.samples import broken_png, png

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hopback.systems.file_pipeline.messages import FileUploaded
    from hopback.systems.file_pipeline.storage import FileStorage

pytestmark = pytest.mark.socket

_BUCKET = "s3://hopback-files/team"
_QUEUES = "/admin/dlq/queues"


@pytest.fixture
def s3_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """moto's server, with an empty bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = import_module("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = import_module("boto3").client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="hopback-files")
    yield endpoint
    # Its servers share what they keep, within a process.
    for one in client.list_objects_v2(Bucket="hopback-files").get("Contents", ()):
        client.delete_object(Bucket="hopback-files", Key=one["Key"])
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> FileStorage:
    """Each storage in turn, ready."""
    if request.param == "s3":
        made: FileStorage = S3Storage.at(_BUCKET, request.getfixturevalue("s3_endpoint"))
    else:
        made = Folder(tmp_path)
    made.prepare(time.time())
    return made


def test_storage_receives_reads_and_forgets_files(storage: FileStorage) -> None:
    """Received whole or not at all, taken in once, read, forgotten; a thumbnail is replaced whole."""
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    with pytest.raises(FileNotFoundError):
        storage.take_in(first)
    storage.receive(first, io.BytesIO(b"hello world"))
    size, sha256 = storage.take_in(first)
    assert storage.take_in(first) == (size, sha256)
    assert (size, storage.size(first), storage.read(first)) == (11, 11, b"hello world")
    storage.receive(second, io.BytesIO(b"half"))
    storage.forget(second)
    for ask in (storage.take_in, storage.read, storage.size):
        with pytest.raises(FileNotFoundError):
            ask(second)
    assert storage.read_thumbnail(first) is None
    for content in (b"one", b"two"):
        storage.keep_thumbnail(first, content)
        assert storage.read_thumbnail(first) == content
    with pytest.raises(ValueError, match="expected the id of a file"):
        storage.read("../../etc/passwd")


@in_virtual_time
async def test_the_pipeline_works_on_an_object_store(tmp_path: Path, s3_endpoint: str) -> None:
    """Upload, validation, thumbnail and metadata; nothing of a file is left on the disk."""
    options = {"storage": _BUCKET, "s3_endpoint": s3_endpoint}
    async with front_door(tmp_path, **options) as door:
        shown = await door.done(png(), "a.png", "image/png")
        assert shown["status"] == "completed", shown
        picture = await door.client.get(f"/files/{shown['fileId']}/thumbnail")
        assert picture.content[:4] == b"\x89PNG"
        assert [name for name in door.on_disk() if shown["fileId"] in name] == []
    client = import_module("boto3").client("s3", endpoint_url=s3_endpoint)
    found = client.list_objects_v2(Bucket="hopback-files", Prefix="team/")["Contents"]
    keys = {one["Key"] for one in found}
    file_id = shown["fileId"]
    assert keys == {f"team/files/{file_id}", f"team/thumbnails/{file_id}.png"}


class _Mailbox:
    """What aiosmtpd hands over; it refuses the first mail for now, as a busy server does."""

    def __init__(self) -> None:
        self.refusals = 1
        self.mails: list[Any] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        if self.refusals:
            self.refusals -= 1
            return "451 busy, try again"
        self.mails.append((envelope.rcpt_tos, message_from_bytes(envelope.content)))
        return "250 OK"


@in_virtual_time
async def test_notification_is_also_sent_by_mail(tmp_path: Path) -> None:
    """One mail for each notification, to every address; a server that is busy is tried again."""
    mailbox = _Mailbox()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = import_module("aiosmtpd.controller").Controller(mailbox, "127.0.0.1", port)
    server.start()
    try:
        options = {
            "smtp": f"smtp://127.0.0.1:{port}",
            "mail_to": ("ops@example.org", "team@example.org"),
        }
        async with front_door(tmp_path, **options) as door:
            await door.done(b"hello", "a.txt", "text/plain")
            told = await door.client.get("/notifications")
            assert [one["text"] for one in told.json()["items"]] == ["a.txt is ready."]
    finally:
        server.stop()
    ((recipients, mail),) = mailbox.mails
    assert recipients == ["ops@example.org", "team@example.org"]
    assert (mail["Subject"], mail["From"]) == ("a.txt is ready.", "file-pipeline@localhost")
    assert mailbox.refusals == 0


@contextmanager
def _issuer() -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """An issuer's key document over HTTP: its address, the document to change, who asked."""
    document: dict[str, Any] = {"keys": []}
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/certs", document, asked
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def _key(
    kid: str, use: str = "sig", alg: str = "RS256"
) -> tuple[rsa.RSAPrivateKey, dict[str, Any]]:
    """A key as Keycloak publishes it: with its certificate and the certificate's digest."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
    del public["key_ops"]
    certificate = {"x5c": ["MIICmzCCAYMCBgGP"], "x5t": "dGhlIGRpZ2VzdA", "x5t#S256": "ZGlnZXN0"}
    return private, {**public, **certificate, "kid": kid, "use": use, "alg": alg}


def _token(private: rsa.RSAPrivateKey, kid: str, role: str = "admin") -> dict[str, str]:
    """An access token with the claims that Keycloak gives a client of a realm."""
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
async def test_an_issuers_keys_let_administrators_in(tmp_path: Path) -> None:
    """As Keycloak does: RS256, realm roles, a key for encryption among them, and keys that rotate.

    The keys are kept and not asked for again. After a rotation the new key is found by the first token
    that names it; the old one is believed as long as it is published.
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
        async with front_door(tmp_path, **options) as door:
            for _ in range(3):
                assert (
                    await door.client.get(_QUEUES, headers=_token(old, "old"))
                ).status_code == 200
            assert len(asked) == 1
            viewer = await door.client.get(_QUEUES, headers=_token(old, "old", "viewer"))
            assert viewer.status_code == 403
            forged = await door.client.get(_QUEUES, headers=_token(new, "old"))
            assert forged.status_code == 401
            by_the_wrong_key = await door.client.get(_QUEUES, headers=_token(sealing, "sealing"))
            assert by_the_wrong_key.status_code == 401
            document["keys"] = [sealing_public, new_public, old_public]
            await door.system.test.advance(120)
            for private, kid in ((new, "new"), (old, "old")):
                seen = await door.client.get(_QUEUES, headers=_token(private, kid))
                assert seen.status_code == 200
            assert len(asked) == 2
            document["keys"] = [sealing_public, new_public]
            await door.system.test.advance(600)
            assert (await door.client.get(_QUEUES, headers=_token(new, "new"))).status_code == 200
            assert len(asked) == 3
            gone = await door.client.get(_QUEUES, headers=_token(old, "old"))
            assert gone.status_code == 401


def scan(file: FileUploaded, content: bytes) -> Rejection | None:
    """A check of one's own."""
    return Rejection("INFECTED", f"{file.name} has a virus.") if b"virus" in content else None


@in_virtual_time
async def test_custom_inspection_rejects_with_code_and_reason(tmp_path: Path) -> None:
    """It is asked after ours, and only of what passed."""
    here = f"{__name__}:scan"
    assert __name__ in sys.modules
    async with front_door(tmp_path, inspection=here) as door:
        infected = await door.done(b"a virus", "a.txt", "text/plain")
        assert infected["status"] == "rejected"
        assert infected["rejection"] == {"code": "INFECTED", "reason": "a.txt has a virus."}
        assert (await door.done(b"harmless", "b.txt", "text/plain"))["status"] == "completed"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"FILES_STORAGE": "ftp://x"}, "FILES_STORAGE"),
        ({"SMTP_URL": "mail.example.org"}, "SMTP_URL"),
        ({"SMTP_URL": "smtp://mail.example.org"}, "MAIL_TO"),
        ({"ADMIN_JWKS_URL": "http://keycloak.example.org/certs"}, "ADMIN_JWKS_URL"),
        ({"ADMIN_JWKS_URL": "https://k/c", "ADMIN_JWT_SECRET": "s" * 32}, "ADMIN_JWKS_URL"),
    ],
)
def test_conflicting_settings_are_named(variables: dict[str, str], named: str) -> None:
    """Without the values that may be secret."""
    with pytest.raises(SettingsError, match=named):
        PipelineSettings.read(variables)


@in_virtual_time
async def test_file_list_filters_by_status_and_returns_total(tmp_path: Path) -> None:
    """Also `accepted`, before anything was done; a status that no file can have is refused."""
    async with front_door(tmp_path) as door:
        for name in ("a.txt", "b.txt"):
            await door.done(b"hello", name, "text/plain")
        page = (await door.client.get("/files?limit=1&status=completed")).json()
        assert (len(page["items"]), page["total"]) == (1, 2)
        door.system.test.broker.cut()
        await door.upload(b"hello", "c.txt", "text/plain")
        accepted = (await door.client.get("/files?status=accepted")).json()
        assert [one["name"] for one in accepted["items"]] == ["c.txt"]
        assert (await door.client.get("/files?status=bogus")).status_code == 400


@in_virtual_time
async def test_files_that_share_a_correlation_id_keep_their_own_events(tmp_path: Path) -> None:
    """The caller chooses the id, and may choose it twice."""
    async with front_door(tmp_path) as door:
        shown = []
        for name in ("a.txt", "b.txt"):
            form = {"file": (name, b"hello", "text/plain")}
            same = {"X-Correlation-ID": "same"}
            answer = await door.client.post("/files", files=form, headers=same)
            await door.system.settle()
            shown.append(answer.headers["location"])
        for where in shown:
            events = (await door.client.get(f"{where}/events")).json()["items"]
            assert [one["type"] for one in events] == [
                "FileUploaded.v1",
                "FileValidated.v1",
                "MetadataExtracted.v1",
                "ProcessingCompleted.v1",
            ]


@in_virtual_time
async def test_failed_redrive_notifies_again(tmp_path: Path) -> None:
    """A second ProcessingFailed, a second notification; repaired, nothing of the failure is left."""
    async with front_door(tmp_path) as door:
        failed = await door.done(broken_png(), "a.png", "image/png")
        assert failed["status"] == "failed"
        before = (await door.system.told()).count("ProcessingFailed.v1")
        await door.system.redrive("q.thumbnail")
        await door.system.settle()
        assert (await door.system.told()).count("ProcessingFailed.v1") == before + 1
        assert (await door.system.audited()).count("ProcessingFailed.v1") == before + 1
        door.system.folder.file(failed["fileId"]).write_bytes(png())
        for queue in door.system.dead():
            await door.system.redrive(queue)
        await door.client.post(f"/files/{failed['fileId']}/reprocess")
        await door.system.settle()
        repaired = (await door.client.get(f"/files/{failed['fileId']}")).json()
        assert repaired["status"] == "completed", repaired
        assert "failure" not in repaired
        assert repaired["size"] == repaired["metadata"]["size"] == len(png())
        assert repaired["sha256"] == repaired["metadata"]["sha256"]
