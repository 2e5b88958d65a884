"""The settings of the file pipeline, read from environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hopback.systems.settings import SettingsError, Variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.ops.http import JwtSettings
    from hopback.systems.language import Language

_MEBIBYTE = 1024 * 1024
"""Bytes."""
_SECRET_BYTES = 32
"""RFC 7518, 3.2: a key of HS256 has at least the 256 bits of its hash."""


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The settings of the file pipeline.

    `max_pixels` is the largest picture that is decoded. A file that is not processed `timeout_s` seconds
    after its upload has timed out. This is checked every `sweep_s` seconds. `secret` signs the tokens of
    administrators. Without it every request to the admin endpoints is refused.
    """

    folder: Path = Path("file-pipeline")
    database: str = ""
    hardened: bool = False
    retry_ttl_ms: int = 15_000
    max_bytes: int = 10 * _MEBIBYTE
    max_pixels: int = 40_000_000
    upload_s: int = 60
    timeout_s: int = 120
    sweep_s: int = 5
    secret: str = ""
    storage: str = ""
    """`s3://bucket/prefix`; empty: the folder."""
    s3_endpoint: str = ""
    jwks_url: str = ""
    issuer: str = "file-pipeline"
    audience: str = "file-pipeline"
    roles_claim: str = "roles"
    smtp: str = ""
    """`smtp://user:password@host:port`. Empty: no mail is sent."""
    mail_from: str = "file-pipeline@localhost"
    mail_to: tuple[str, ...] = ()
    inspection: str = ""
    """`module:function` of an additional check, see `validator.Inspect`."""
    language: Language = "en"
    """The language of errors for clients without `Accept-Language`."""

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> PipelineSettings:
        """Read the settings from environment variables. SettingsError names all wrong ones."""
        given = Variables(variables)
        found = cls(
            folder=Path(given.text("FILES_FOLDER", "file-pipeline")),
            database=given.text("DATABASE_URL", ""),
            hardened=given.flag("HARDENED"),
            retry_ttl_ms=given.number("RETRY_TTL_MS", 15_000, least=1),
            max_bytes=given.number("MAX_UPLOAD_BYTES", 10 * _MEBIBYTE, least=1),
            max_pixels=given.number("MAX_PIXELS", 40_000_000, least=1),
            upload_s=given.number("UPLOAD_SECONDS", 60, least=1),
            timeout_s=given.number("PROCESSING_TIMEOUT_SECONDS", 120, least=1),
            sweep_s=given.number("TIMEOUT_SWEEP_SECONDS", 5, least=1),
            secret=given.text("ADMIN_JWT_SECRET", ""),
            storage=given.text("FILES_STORAGE", ""),
            s3_endpoint=given.text("S3_ENDPOINT_URL", ""),
            jwks_url=given.text("ADMIN_JWKS_URL", ""),
            issuer=given.text("ADMIN_JWT_ISSUER", "file-pipeline"),
            audience=given.text("ADMIN_JWT_AUDIENCE", "file-pipeline"),
            roles_claim=given.text("ADMIN_JWT_ROLES_CLAIM", "roles"),
            smtp=given.text("SMTP_URL", ""),
            mail_from=given.text("MAIL_FROM", "file-pipeline@localhost"),
            mail_to=tuple(filter(None, given.text("MAIL_TO", "").replace(" ", "").split(","))),
            inspection=given.text("FILE_INSPECTION", ""),
            language=given.language("LANGUAGE_OF_ANSWERS"),
        )
        if found.storage and not found.storage.startswith("s3://"):
            given.refuse("FILES_STORAGE", "s3://bucket/prefix, or empty for the folder")
        # Conflicts of two variables. The messages do not contain values, because these may be secret.
        if found.jwks_url and found.secret:
            raise SettingsError("ADMIN_JWKS_URL: expected it alone, got ADMIN_JWT_SECRET as well")
        if found.jwks_url and (problem := found.tokens().problem()):
            raise SettingsError(f"ADMIN_JWKS_URL: {problem}")
        if found.smtp and not found.smtp.startswith(("smtp://", "smtps://")):
            raise SettingsError("SMTP_URL: expected smtp://host:port or smtps://host:port")
        if found.smtp and not found.mail_to:
            raise SettingsError("MAIL_TO: expected an address, as SMTP_URL is set")
        given.check()
        if found.secret and len(found.secret.encode()) < _SECRET_BYTES:
            # The message does not contain the value, because it is a secret.
            raise SettingsError(f"ADMIN_JWT_SECRET: expected at least {_SECRET_BYTES} bytes")
        return found

    def tokens(self) -> JwtSettings:
        """Return the check of administrators' tokens: by the issuer's keys or by the shared secret."""
        from hopback.ops.http import JwtSettings

        return JwtSettings(
            issuer=self.issuer,
            audience=self.audience,
            jwks_url=self.jwks_url,
            secret_env="" if self.jwks_url else "ADMIN_JWT_SECRET",
            roles_claim=self.roles_claim,
        )

    @property
    def database_url(self) -> str:
        """The address of the database. The default is a SQLite file in the folder."""
        return self.database or f"sqlite:///{(self.folder / 'file-pipeline.db').absolute()}"
