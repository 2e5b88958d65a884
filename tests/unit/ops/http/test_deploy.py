"""The container files and the pages, as far as they can be tried without a container engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml  # type: ignore[import-untyped]

from hopback.cli.app import root
from hopback.ops.http.settings import parse_settings
from tests.architecture.source import ROOT

_DEPLOY = ROOT / "deploy"


def _instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", (_DEPLOY / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def _compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())
    return found


def _is_command(words: list[str]) -> None:
    """Parse the arguments with the real command. A usage error fails the test."""
    context = click.Context(root, info_name="hopback")
    command = root.get_command(context, words[0])
    assert command is not None, words
    command.make_parser(click.Context(command, info_name=words[0])).parse_args(words[1:])


def test_image_uses_known_instructions_and_runs_as_hopback() -> None:
    """All copied files and installed extras exist."""
    found = _instructions()
    known = {
        "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"
    }  # fmt: skip
    assert {word for word, _ in found} <= known
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / name).exists() for name in rest.split()[:-1]), rest
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert "all" in extras
    users = [rest for word, rest in found if word == "USER"]
    assert users == ["hopback"]


def test_package_builds_from_files_copied_into_image(tmp_path: Path) -> None:
    for word, rest in _instructions():
        if word == "COPY" and not rest.startswith("--from"):
            *names, target = rest.split()
            for name in names:
                copy = tmp_path / target
                copy = copy / Path(name).name if target.endswith("/") else copy
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.symlink_to(ROOT / name)
    program = "from hatchling.build import prepare_metadata_for_build_wheel as p; print(p('.'))"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Name: hopback" in (tmp_path / ran.stdout.strip() / "METADATA").read_text()


def test_image_installs_only_pinned_packages_with_hashes() -> None:
    steps = [step for word, rest in _instructions() if word == "RUN" for step in rest.split("&&")]
    installing = [step.split() for step in steps if "pip " in step]
    assert installing
    for step in installing:
        assert (
            "--require-hashes" in step
            or {"--no-deps", "--no-build-isolation"} <= {*step}
            or {
                "--no-deps",
                "--no-index",
            }
            <= {*step}
        ), step
    for path in (ROOT / "tools" / "pins").glob("*.txt"):
        entries = re.split(r"\n(?=\S)", path.read_text().strip())[1:]
        assert all(re.match(r"[\w.-]+==\S+ \\\n +--hash=sha256:", entry) for entry in entries), path


def test_requirements_of_package_and_extra_all_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # Frameworks are not part of `all`. An application that uses one has it installed.
    chosen = re.findall(r"[\w-]+", extras["all"][0].removeprefix("hopback"))
    required = [*project["dependencies"], *(one for name in chosen for one in extras[name])]
    names = {re.split(r"[\[<>=;~! ]", one)[0] for one in required} - {"hopback"}
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "tools/pins/all.txt").read_text(), re.MULTILINE)
    assert names - {*pinned} == set()


def test_image_entry_point_and_command_parse() -> None:
    found = dict(_instructions())
    assert json.loads(found["ENTRYPOINT"]) == ["hopback"]
    _is_command(json.loads(found["CMD"]))


_COMPOSE_FILES = [
    *sorted(_DEPLOY.glob("compose*.yaml")),
    ROOT / "src/hopback/systems/file_pipeline/infra/docker-compose.yml",
]


@pytest.mark.parametrize("path", _COMPOSE_FILES, ids=lambda path: path.name)
def test_containers_drop_all_capabilities(path: Path) -> None:
    """The images of brokers and databases start as root and get back the capabilities that this
    needs.
    """
    for name, service in yaml.safe_load(path.read_text())["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        is_server = name in ("rabbitmq", "postgres")
        assert (name == "rabbitmq") or service["read_only"], name
        assert is_server or "cap_add" not in service, name


@pytest.mark.parametrize(
    "path",
    [*_COMPOSE_FILES, ROOT / "src/hopback/cli/templates/compose.yaml.template"],
    ids=lambda path: path.name,
)
def test_compose_files_fit_the_schema_of_the_compose_specification(path: Path) -> None:
    schemas = files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text())
    compose = yaml.safe_load(path.read_text())
    jsonschema.validate(compose, schema)
    next(iter(compose["services"].values()))["imagge"] = "misspelt"
    with pytest.raises(jsonschema.ValidationError, match="imagge"):
        jsonschema.validate(compose, schema)


def test_compose_commands_parse_and_volumes_are_declared() -> None:
    """The file does not contain secrets."""
    compose = _compose()
    services = compose["services"]
    assert set(services) == {"rabbitmq", "postgres", "admin", "consumers"}
    for name in ("admin", "consumers"):
        assert services[name]["read_only"], name
        assert services[name]["security_opt"] == ["no-new-privileges:true"], name
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        named = [each.partition(":")[0] for each in service.get("volumes", [])]
        assert {name for name in named if not name.startswith(".")} <= set(compose["volumes"])
        if "build" in service:
            assert (_DEPLOY / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).is_file()
            _is_command(service["command"])
    text = (_DEPLOY / "compose.yaml").read_text()
    assert re.findall(r"PASS(?:WORD)?: (?!\$\{)", text) == []
    assert services["admin"]["ports"] == ["127.0.0.1:8080:8080"]


@pytest.mark.parametrize("page", ["docs/reference/http-api.md"])
def test_example_settings_of_docs_are_valid(page: str) -> None:
    (text,) = re.findall(
        r'```toml title="admin.toml"\n(.*?)```', (ROOT / page).read_text(), re.DOTALL
    )
    settings = parse_settings(tomllib.loads(text), {}, page)
    assert settings.asks_who
