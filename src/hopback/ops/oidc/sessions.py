"""The database table of OpenID Connect sessions. It is encrypted, because it contains tokens."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import msgspec

from hopback.extras import needs

with needs("oidc", "sign-in by OIDC"):
    from cryptography.fernet import Fernet, InvalidToken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.sql.database import Execute, Row, SqlDatabase

_CACHED_S = 3.0
"""Seconds until a session is read again. A session that another process has ended is accepted for
this time.
"""


class OidcSession(msgspec.Struct, frozen=True):
    """A signed-in user, with the tokens for further requests to the provider."""

    subject: str
    name: str
    roles: tuple[str, ...]
    id_token: str
    refresh_token: str
    check_at: float
    until: float


class OidcSessions:
    """Read and write sessions."""

    def __init__(self, database: SqlDatabase, secret: str) -> None:
        self._database = database
        key = hashlib.sha256(b"hopback oidc sessions\0" + secret.encode()).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._cache: dict[str, tuple[float, OidcSession]] = {}

    async def get(self, session_id: str, now: float) -> OidcSession | None:
        """Return a session, or None if it is unknown or has expired."""
        read_at, session = self._cache.get(session_id, (float("-inf"), None))
        if session is None or not 0 <= now - read_at < _CACHED_S:
            session = await self._read(session_id)
        if session is None or now >= session.until:
            self._cache.pop(session_id, None)
            return None
        self._cache[session_id] = now, session
        return session

    async def put(self, session_id: str, session: OidcSession, now: float) -> None:
        """Store a session, release its claim, and delete expired sessions."""
        text = self._fernet.encrypt(msgspec.json.encode(session)).decode()
        row = {"id": session_id, "document": text, "until": session.until, "now": now}

        def put(execute: Execute) -> None:
            execute("DELETE FROM hopback_oidc_sessions WHERE expires_at <= :now", row)
            execute(
                "INSERT INTO hopback_oidc_sessions (id, document, expires_at, renewing_until)"
                " VALUES (:id, :document, :until, 0) ON CONFLICT (id) DO UPDATE SET"
                " document = excluded.document, expires_at = excluded.expires_at, renewing_until = 0",
                row,
            )

        await self._database.write(put)
        self._cache = {each: one for each, one in self._cache.items() if one[1].until > now}
        self._cache[session_id] = now, session

    async def claim(self, session_id: str, now: float, seconds: float) -> bool:
        """Claim the renewal of a session for some seconds. Returns False if another caller has
        claimed it.
        """
        found = await self._write(
            "UPDATE hopback_oidc_sessions SET renewing_until = :until"
            " WHERE id = :id AND renewing_until <= :now RETURNING id",
            {"id": session_id, "now": now, "until": now + seconds},
        )
        return bool(found)

    async def remove(self, session_id: str) -> None:
        self._cache.pop(session_id, None)
        await self._write("DELETE FROM hopback_oidc_sessions WHERE id = :id", {"id": session_id})

    async def _read(self, session_id: str) -> OidcSession | None:
        query = "SELECT document FROM hopback_oidc_sessions WHERE id = :id"
        rows = await self._database.read(lambda execute: execute(query, {"id": session_id}))
        if not rows:
            return None
        try:
            text = self._fernet.decrypt(rows[0][0].encode())
            return msgspec.json.decode(text, type=OidcSession)
        except (InvalidToken, msgspec.DecodeError):  # it was encrypted with another secret
            return None

    async def _write(self, statement: str, values: Mapping[str, object]) -> list[Row]:
        return await self._database.write(lambda execute: execute(statement, values))
