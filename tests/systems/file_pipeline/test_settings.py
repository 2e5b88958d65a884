"""The settings, from environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopback.systems.file_pipeline.settings import Settings
from hopback.systems.settings import SettingsError


def test_without_variables_the_documented_numbers_hold() -> None:
    """15 s, faithful, SQLite in the folder."""
    found = Settings.read({})
    assert found == Settings()
    assert (found.retry_ttl_ms, found.hardened) == (15_000, False)
    assert found.database_url == f"sqlite:///{Path.cwd() / 'file-pipeline' / 'file-pipeline.db'}"


def test_every_variable_has_its_place() -> None:
    """Each of them changes what it names."""
    found = Settings.read(
        {
            "FILES_FOLDER": "there",
            "DATABASE_URL": "postgresql://db/files",
            "HARDENED": "yes",
            "RETRY_TTL_MS": "60",
            "MAX_UPLOAD_BYTES": "5",
            "MAX_PIXELS": "6",
            "UPLOAD_SECONDS": "7",
            "PROCESSING_TIMEOUT_SECONDS": "8",
            "TIMEOUT_SWEEP_SECONDS": "9",
            "ADMIN_JWT_SECRET": "s" * 32,
        }
    )
    url = "postgresql://db/files"
    assert found == Settings(Path("there"), url, True, 60, 5, 6, 7, 8, 9, "s" * 32)
    assert found.database_url == url


def test_everything_wrong_is_said_at_once_and_no_secret_is_shown() -> None:
    """Each variable by its name."""
    with pytest.raises(SettingsError) as refused:
        Settings.read({"RETRY_TTL_MS": "soon", "HARDENED": "perhaps"})
    assert "RETRY_TTL_MS" in str(refused.value)
    assert "HARDENED" in str(refused.value)
    with pytest.raises(SettingsError) as short:
        Settings.read({"ADMIN_JWT_SECRET": "hunter2"})
    assert "ADMIN_JWT_SECRET" in str(short.value)
    assert "hunter2" not in str(short.value)
