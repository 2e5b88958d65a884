"""The settings of the file pipeline, read from environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopback.designs import file_pipeline
from hopback.systems.language import Language
from hopback.systems.settings import EnvironmentSettings, variable
from hopback.topology import Topology

_SECRET_BYTES = 32
"""RFC 7518, section 3.2, requires that an HS256 key has at least as many bits as the hash, i.e.
256.
"""
_STORAGE = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w/.-]*)?")


def _read_secret(text: str) -> str:
    if len(text.encode()) < _SECRET_BYTES:
        raise ValueError(f"at least {_SECRET_BYTES} bytes")
    return text


def _read_storage(text: str) -> str:
    if not _STORAGE.fullmatch(text):
        raise ValueError("s3://bucket/prefix, or empty for the folder")
    return text


def _read_smtp(text: str) -> str:
    if not text.startswith(("smtp://", "smtps://")):
        raise ValueError("smtp://host:port or smtps://host:port")
    return text


@dataclass(frozen=True, slots=True)
class PipelineSettings(EnvironmentSettings):
    """The settings of the file pipeline.

    Pictures with more than `max_pixels` pixels are not decoded. If a file is not processed within
    `timeout_s` seconds after its upload, it times out. This is checked every `sweep_s` seconds.
    `secret` is the key for the tokens of administrators. If neither `secret` nor `jwks_url` is set, all
    requests to the admin endpoints are refused.
    """

    folder: Path = variable("FILES_FOLDER", Path("file-pipeline"))
    database: str = variable("DATABASE_URL", "")
    hardened: bool = variable("HARDENED", False)
    retry_ttl_ms: int = variable("RETRY_TTL_MS", 15_000, least=1)
    max_bytes: int = variable("MAX_UPLOAD_BYTES", 10 * 1024 * 1024, least=1)
    max_pixels: int = variable("MAX_PIXELS", 40_000_000, least=1)
    upload_s: int = variable("UPLOAD_SECONDS", 60, least=1)
    timeout_s: int = variable("PROCESSING_TIMEOUT_SECONDS", 120, least=1)
    sweep_s: int = variable("TIMEOUT_SWEEP_SECONDS", 5, least=1)
    secret: str = variable("ADMIN_JWT_SECRET", "", read=_read_secret, secret=True)
    storage: str = variable("FILES_STORAGE", "", read=_read_storage)
    """An address like `s3://bucket/prefix`. If it is empty, files are stored in `folder`."""
    s3_endpoint: str = variable("S3_ENDPOINT_URL", "")
    jwks_url: str = variable("ADMIN_JWKS_URL", "")
    issuer: str = variable("ADMIN_JWT_ISSUER", "file-pipeline")
    audience: str = variable("ADMIN_JWT_AUDIENCE", "file-pipeline")
    roles_claim: str = variable("ADMIN_JWT_ROLES_CLAIM", "roles")
    smtp: str = variable("SMTP_URL", "", read=_read_smtp, secret=True)
    """An address like `smtp://user:password@host:port`. If it is empty, no mail is sent."""
    mail_from: str = variable("MAIL_FROM", "file-pipeline@localhost")
    mail_to: tuple[str, ...] = variable("MAIL_TO", ())
    inspection: str = variable("FILE_INSPECTION", "")
    """An additional check as `module:function`, see `stages.Inspect`."""
    language: Language = variable("LANGUAGE_OF_ANSWERS", "en", choices=("en", "pt"))
    """The language of error messages for clients that don't send `Accept-Language`."""

    def problems(self, variables: Mapping[str, str]) -> Sequence[str]:
        del variables
        if self.smtp and not self.mail_to:
            return ["MAIL_TO: expected an address, as SMTP_URL is set"]
        return ()

    @property
    def database_url(self) -> str:
        """The address of the database. By default, it is a SQLite file in `folder`."""
        return self.database or f"sqlite:///{(self.folder / 'file-pipeline.db').absolute()}"

    def topology(self) -> Topology:
        """Return the documented design with the configured parameters."""
        return file_pipeline(hardened=self.hardened, retry_ttl_ms=self.retry_ttl_ms)
