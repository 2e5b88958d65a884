"""`hopback init` from the installed package: every file that it writes works."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement

from tests.acceptance.running import running

if TYPE_CHECKING:
    from tests.acceptance.conftest import Installed

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(installed: Installed, tmp_path: Path) -> Path:
    """A new service."""
    ran = installed.run("init", "new/shop", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    return tmp_path / "new/shop"


def test_init_writes_a_service_whose_test_passes(installed: Installed, folder: Path) -> None:
    assert sorted(each.name for each in folder.iterdir()) == [
        "Containerfile",
        "compose.yaml",
        "requirements.txt",
        "shop.py",
        "test_shop.py",
    ]
    command = [str(installed.python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_init_does_not_overwrite_files(installed: Installed, folder: Path) -> None:
    (folder / "shop.py").write_text("mine")
    (folder / "compose.yaml").unlink()
    ran = installed.run("init", cwd=folder)
    assert ran.returncode == 6
    assert "already contains Containerfile, requirements.txt, shop.py, test_shop.py" in ran.stderr
    assert (folder / "shop.py").read_text() == "mine"
    assert not (folder / "compose.yaml").exists()


def test_containerfile_steps_give_a_working_service(
    installed: Installed, folder: Path, tmp_path: Path
) -> None:
    """Each instruction is executed here, without a container engine."""
    text = (folder / "Containerfile").read_text()
    assert text == (_ROOT / "deploy/Containerfile.service").read_text()
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    steps = [line.split(" ", 1) for line in lines if line and not line.startswith("#")]
    image = tmp_path / "image"
    image.mkdir()
    environment: dict[str, str] = {}
    command: list[str] = []
    for word, rest in steps:
        match word:
            case "COPY":
                *names, target = rest.split()
                assert target == "./"
                for name in names:
                    shutil.copy(folder / name, image)
            case "RUN":
                assert rest.startswith("pip install --no-cache-dir ")
                # The wheel is installed already. The requirement must accept it.
                pip = [sys.executable, "-m", "pip", "--python", str(installed.python)]
                pip += [*rest.split()[1:], "--no-index", "--quiet"]
                ran = subprocess.run(pip, cwd=image, capture_output=True, text=True, check=False)
                assert ran.returncode == 0, ran.stderr
            case "ENV":
                environment |= dict(each.split("=", 1) for each in rest.split())
            case "ENTRYPOINT" | "CMD":
                command += json.loads(rest)
            case _:
                assert (word, rest.partition(":")[0]) in {
                    ("FROM", "docker.io/library/python"),
                    ("WORKDIR", "/app"),
                    ("USER", "10001"),
                    ("EXPOSE", "8080"),
                }
    assert command[:2] == ["hopback", "run"]
    environment |= {"HOPBACK_BROKER": "embedded", "HOPBACK_HTTP": "0"}
    with running(installed, image, *command[2:], **environment) as service:
        service.until(lambda: len(service.said("consumer.started")) == 2)
        ran = installed.run("publish", "orders", '{"id": 7}', cwd=image)
        assert ran.returncode == 0, ran.stderr
        service.until(lambda: "invoice for order 7" in service.out)
        ran = installed.run("dlq", "ls", cwd=image)
        assert "--broker embedded" in ran.stderr
        assert service.get("/readyz")[0] == 200
        assert service.get("/metrics")[0] == 200
        assert service.end(signal.SIGTERM) == 0


def test_compose_file_builds_containerfile_and_connects_service(folder: Path) -> None:
    compose: dict[str, Any] = yaml.safe_load((folder / "compose.yaml").read_text())
    services = compose["services"]
    assert services.keys() == {"rabbitmq", "shop"}
    shop = services["shop"]
    assert (folder / shop["build"]["context"] / shop["build"]["dockerfile"]).is_file()
    assert shop["depends_on"].keys() <= services.keys()
    password = services["rabbitmq"]["environment"]["RABBITMQ_DEFAULT_PASS"]
    user = services["rabbitmq"]["environment"]["RABBITMQ_DEFAULT_USER"]
    assert shop["environment"]["HOPBACK_BROKER"] == f"amqp://{user}:{password}@rabbitmq/"
    assert all(port.startswith("127.0.0.1:") for port in services["rabbitmq"]["ports"])
    assert "127.0.0.1:5672:5672" in services["rabbitmq"]["ports"]
    assert "/readyz" in shop["healthcheck"]["test"][-1]
    (requirement,) = (folder / "requirements.txt").read_text().splitlines()
    assert shop["environment"]["HOPBACK_MANAGEMENT"]
    assert {"management", "metrics"} <= Requirement(requirement).extras
