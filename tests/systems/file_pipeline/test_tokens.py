"""Tokens of administrators that an issuer such as Keycloak has signed."""

from __future__ import annotations

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
from hopback.systems.settings import SettingsError
from hopback.testing import in_virtual_time
from tests.systems.file_pipeline.gateway_client import open_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.socket

_QUEUES = "/admin/dlq/queues"


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
