"""The settings from environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopback import App
from hopback.errors import StoreUnavailable
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.settings import SettingsError
from hopback.testing import in_virtual_time


def test_defaults_without_variables_are_documented_values() -> None:
    """15 s, the faithful form, SQLite in the folder."""
    found = PipelineSettings.read({})
    assert found == PipelineSettings()
    assert (found.retry_ttl_ms, found.hardened) == (15_000, False)
    assert found.database_url == f"sqlite:///{Path.cwd() / 'file-pipeline' / 'file-pipeline.db'}"


def test_each_variable_sets_its_setting() -> None:
    found = PipelineSettings.read(
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
    assert found == PipelineSettings(Path("there"), url, True, 60, 5, 6, 7, 8, 9, "s" * 32)
    assert found.database_url == url


def test_all_invalid_variables_are_named_without_secrets() -> None:
    with pytest.raises(SettingsError) as error:
        PipelineSettings.read({"RETRY_TTL_MS": "soon", "HARDENED": "perhaps"})
    assert "RETRY_TTL_MS" in str(error.value)
    assert "HARDENED" in str(error.value)
    with pytest.raises(SettingsError) as short:
        PipelineSettings.read({"ADMIN_JWT_SECRET": "hunter2"})
    assert "ADMIN_JWT_SECRET" in str(short.value)
    assert "hunter2" not in str(short.value)


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"FILES_STORAGE": "ftp://x"}, "FILES_STORAGE"),
        ({"SMTP_URL": "mail.example.org"}, "SMTP_URL"),
        ({"SMTP_URL": "smtp://mail.example.org"}, "MAIL_TO"),
    ],
)
def test_invalid_addresses_are_named(variables: dict[str, str], name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        PipelineSettings.read(variables)


@in_virtual_time
async def test_start_fails_without_database(tmp_path: Path) -> None:
    """The error has a remedy and no password."""
    url = "postgresql://files:hunter2@127.0.0.1:1/files"
    with pytest.raises(StoreUnavailable, match="does not answer") as error:
        async with PartRuntime(PipelineSettings(folder=tmp_path, database=url)).open(App()):
            pass
    assert "hunter2" not in str(error.value)


@in_virtual_time
async def test_start_fails_if_folder_cannot_be_created(tmp_path: Path) -> None:
    """If a file exists in its place."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match="FILES_FOLDER"):
        async with PartRuntime(PipelineSettings(folder=tmp_path / "file")).open(App()):
            pass
