"""Print figures about the readability of the source: `python3 tools/figures.py`.

The figures are the files and lines per package, class names with several meanings, private
functions that are used once, and numeric constants without a reason. `--redrive` also traces a
re-drive and needs the environment of the project. `--at COMMIT` measures another commit. `--list`
lists the counted items. The tests in tests/architecture use functions of this module.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
# A helper with at most this number of lines and a single use is not worth a function.
SMALL = 4


@dataclass(frozen=True)
class Source:
    """A file of the package with its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The name of the package below `hopback`. For a top-level module it is the name of the
        module.
        """
        return self.name.split(".")[1] if self.name.count(".") > 0 else "hopback"


@dataclass(frozen=True)
class Function:
    """A private function with one use and its number of lines without the docstring.

    If a function is passed by name, for example as a callback, it has to be a function. It can only
    be inlined if it is called.
    """

    where: str
    name: str
    lines: int
    called: bool


def sources(root: Path = ROOT) -> tuple[Source, ...]:
    """Return all files of the package below `root`."""
    found = []
    for path in sorted((root / "src").rglob("*.py")):
        parts = path.relative_to(root / "src").with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found.append(Source(name, path, text, ast.parse(text, filename=str(path))))
    return tuple(found)


def sizes(files: Iterable[Source]) -> dict[str, tuple[int, int]]:
    """Return the number of files and lines of each package."""
    counted: dict[str, tuple[int, int]] = {}
    for each in files:
        number, lines = counted.get(each.package, (0, 0))
        counted[each.package] = number + 1, lines + len(each.text.splitlines())
    return counted


def shared_class_names(files: Iterable[Source]) -> dict[str, list[str]]:
    """Return the names that several classes have, with their modules.

    A leading underscore is ignored, so `_Step` and `Step` are the same name.
    """
    homes: dict[str, list[str]] = defaultdict(list)
    for each in files:
        for node in ast.walk(each.tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(each.name)
    return {name: found for name, found in sorted(homes.items()) if len(found) > 1}


def functions(files: Iterable[Source]) -> int:
    """Return the number of functions and methods."""
    return sum(isinstance(node, _FUNCTIONS) for each in files for node in ast.walk(each.tree))


def single_use(files: Iterable[Source]) -> list[Function]:
    """Return the private functions and methods that are used once for each definition in their
    module.

    If two classes of a module have a method `_read`, each of two uses counts for one of them.
    """
    found = []
    for each in files:
        uses: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        defined: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = defaultdict(list)
        for node in ast.walk(each.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                defined[node.name].append(node)
            elif isinstance(node, ast.Name):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
            elif isinstance(node, ast.Call):
                func: Any = node.func
                calls[str(getattr(func, "attr", getattr(func, "id", "")))] += 1
        for name, nodes in defined.items():
            private = name.startswith("_") and not name.endswith("__")
            if not private or uses[name] != len(nodes):
                continue
            for number, node in enumerate(nodes):
                called = number < calls[name] or _is_property(node)
                found.append(Function(each.name, name, _body_lines(node), called))
    return found


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(each).endswith("property") for each in function.decorator_list)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body
    if ast.get_docstring(function, clean=False) is not None and len(body) > 1:
        body = body[1:]
    return (function.end_lineno or 0) - body[0].lineno + 1


def constants(files: Iterable[Source]) -> Iterator[tuple[str, str, bool]]:
    """Yield the module and name of each numeric constant of a module or class, and whether it has a
    reason.

    A reason is a comment in the same line or above it, or a docstring below it. A comment above
    consecutive constants without a blank line applies to all of them.
    """
    for each in files:
        bodies = [each.tree.body]
        bodies += [node.body for node in ast.walk(each.tree) if isinstance(node, ast.ClassDef)]
        bodies = [body for body in bodies if any(map(_constant_name, body))]
        comments = _comment_lines(each.text) if bodies else {}
        for body in bodies:
            for name, has_reason in _constants_in(body, comments):
                yield each.name, name, has_reason


def without_reason(files: Iterable[Source]) -> list[str]:
    """Return numeric constants without a reason for their value."""
    return [f"{where}.{name}" for where, name, reason in constants(files) if not reason]


def _constants_in(body: list[ast.stmt], comments: Mapping[int, bool]) -> Iterator[tuple[str, bool]]:
    last_line, held = -1, False
    for position, node in enumerate(body):
        name = _constant_name(node)
        if name is None:
            continue
        end = node.end_lineno or node.lineno
        after = body[position + 1] if position + 1 < len(body) else None
        described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        beside = any(line in comments for line in range(node.lineno, end + 1))
        above = comments.get(node.lineno - 1, False)
        # The comment above the first constant applies to the following lines.
        held = above or (held and last_line == node.lineno - 1)
        last_line = (after.end_lineno or 0) if described and after is not None else end
        yield name, beside or described or held


def _constant_name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target, value = node.target, node.value
    else:
        return None
    if not isinstance(target, ast.Name) or not target.id.isupper():
        return None
    return target.id if _is_number(value) else None


def _is_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int() | float()):
            return True
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.Tuple(elts=elements):
            return bool(elements) and all(_is_number(element) for element in elements)
    return False


def _comment_lines(text: str) -> dict[int, bool]:
    """Return the lines that contain a comment, and whether they contain nothing else."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        comment = token.string.lstrip("#: ")
        if token.type == tokenize.COMMENT and not comment.startswith(("type:", "noqa", "fmt:")):
            found[token.start[0]] = token.line.lstrip().startswith("#")
    return found


# --- one re-drive ---------------------------------------------------------------------------------

_QUEUE = "orders.dlq"
# Values that contain this text, even indirectly, carry the re-drive.
_MARKER = "why-this-re-drive-was-started"


def trace_redrive() -> dict[str, Any]:
    """Re-drive a group with the five requests of the page. Returns the files, functions and types
    that were used.

    The code of the embedded broker is not included. A type carries the re-drive if an instance
    contains the given reason, was created after the last step and was passed between functions.
    """
    import asyncio
    import warnings

    warnings.simplefilter("ignore")  # the script also runs on other commits
    return asyncio.run(_redrive())


async def _redrive() -> dict[str, Any]:
    import gc
    import html
    import re

    import httpx

    tracer = _Tracer()
    with tempfile.TemporaryDirectory() as folder:
        async with _service(Path(folder)) as (app, operations):
            transport = httpx.ASGITransport(app)
            base = "http://127.0.0.1"
            async with httpx.AsyncClient(transport=transport, base_url=base) as client:
                page = f"/queues/{_QUEUE}/re-drive"
                look = {"limit": "10", "how": "plain"}
                looked = await client.post(f"/queues/{_QUEUE}/look", data=look)
                session = _last_part(looked)
                fields = {"session": session, "filter": "error:LookupError"}
                with tracer:
                    await client.get(page, params=fields)
                    await client.post(page, data={**fields, "step": "2", "on": "1"})
                    asked = {**fields, "step": "3", "on": "2", "reason": _MARKER}
                    review = (await client.post(page, data=asked)).text
                found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', review)
                hidden = {name: html.unescape(value) for name, value in found}
                tracer.before = {id(each): each for each in gc.get_objects()}
                with tracer:
                    began = await client.post(page, data={**hidden, "step": "go"})
                    await operations.wait(_last_part(began))
                    await client.get(began.headers["location"])
    return {
        "files": sorted(tracer.files),
        "functions": len(tracer.functions),
        "types": sorted(tracer.types),
    }


def _last_part(response: Any) -> str:
    """Return the last part of the path of a redirect."""
    from urllib.parse import urlsplit

    location = response.headers.get("location")
    if location is None:
        raise SystemExit(
            f"expected the page to redirect, got {response.status_code} for "
            f"{response.request.method} {response.request.url}"
        )
    return urlsplit(str(location)).path.rpartition("/")[2]


def _service(folder: Path) -> Any:
    from contextlib import asynccontextmanager

    from hopback.broker.declare import declare
    from hopback.broker.embedded import EmbeddedBroker
    from hopback.broker.embedded.management import EmbeddedManagement
    from hopback.clock import SystemClock
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.http import create_app
    from hopback.topology.expand import harden_queues, recommend_plan
    from hopback.topology.model import Topology

    @asynccontextmanager
    async def open_app() -> Any:
        broker = EmbeddedBroker()
        plan = recommend_plan("orders", tiers_ms=[30_000], attempts=2)
        topology = Topology("shop", queues=tuple(harden_queues(plan)), plans=(plan,))
        connection = await broker.connect("figures")
        await declare(connection, topology)
        channel = await connection.open_channel()
        for number in range(3):
            await channel.publish(_dead_letter(number))
        await connection.close()
        view, clock = EmbeddedManagement(broker), SystemClock()
        async with (
            _open_journal(f"sqlite:///{folder}/jobs.db", clock) as journal,
            _dead_letters()(
                ManagedBroker(broker, management=view, topologies=(topology,), clock=clock),
                journal=journal,
            ) as operations,
        ):
            yield create_app(operations), operations

    return open_app()


def _dead_letter(number: int) -> Any:
    from hopback.headers import Failure, failure_json
    from hopback.message import Message, Properties

    failure = Failure(type="LookupError", message=f"order {number} cannot be found", attempts=2)
    headers: dict[str, Any] = {
        "hopback-attempts": 2,
        "hopback-queue": "orders",
        "hopback-failure": failure_json(failure) or "",
    }
    return Message("", _QUEUE, b"{}", Properties(message_id=f"m-{number}", headers=headers))


def _dead_letters() -> Any:
    from hopback.ops.operations import Operations

    return Operations


def _open_journal(url: str, clock: Any) -> Any:
    from hopback.ops.jobs.journal import open_journal

    return open_journal(url, clock)


class _Tracer:
    """Records Hopback's functions while it is active."""

    def __init__(self) -> None:
        import hopback

        self.files: set[str] = set()
        self.functions: set[tuple[str, str]] = set()
        self.types: set[str] = set()
        self.before: dict[int, Any] | None = None
        self._root = str(Path(hopback.__file__).parent) + os.sep

    def __enter__(self) -> None:
        sys.setprofile(self._note)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, _argument: object) -> None:
        path = frame.f_code.co_filename
        if event not in ("call", "return") or not path.startswith(self._root):
            return
        below = path[len(self._root) :]
        if below.startswith(("broker/embedded/", "broker/simulator/")):
            return
        self.files.add(below)
        self.functions.add(
            (below, frame.f_code.co_qualname if _QUALIFIED else frame.f_code.co_name)
        )
        if self.before is not None and event == "return":
            for value in list(frame.f_locals.values()):
                self._check(value)

    def _check(self, value: object) -> None:
        kind = type(value)
        is_hopback = getattr(kind, "__module__", "").startswith("hopback.")
        if is_hopback and id(value) not in (self.before or {}) and _holds(value, 3):
            self.types.add(f"{kind.__module__}.{kind.__qualname__}")


_QUALIFIED = sys.version_info >= (3, 11)


def _holds(value: object, depth: int) -> bool:
    if isinstance(value, str):
        return _MARKER in value
    if depth == 0 or not getattr(type(value), "__module__", "").startswith("hopback."):
        return False
    # Only follow fields. Objects of the running service can reach all values.
    names = getattr(value, "_fields", None) or getattr(value, "__struct_fields__", None)
    fields = names or getattr(value, "__dataclass_fields__", None) or _slots(value)
    return any(_holds(getattr(value, name, None), depth - 1) for name in fields)


def _slots(value: object) -> list[str]:
    return list(getattr(value, "__dict__", ())) + [
        name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())
    ]


# --- the report -----------------------------------------------------------------------------------


def figures(root: Path = ROOT) -> dict[str, Any]:
    """Return all figures of the source."""
    files = sources(root)
    once, total = single_use(files), functions(files)
    numbers = list(constants(files))
    return {
        "packages": sizes(files),
        "class_names": shared_class_names(files),
        "functions": total,
        "single_use": [f"{each.where}.{each.name}" for each in once],
        "called_once": [f"{each.where}.{each.name}" for each in once if each.called],
        "called_once_small": [
            f"{each.where}.{each.name}" for each in once if each.called and each.lines <= SMALL
        ],
        "constants": len(numbers),
        "without_reason": [f"{where}.{name}" for where, name, reason in numbers if not reason],
        "called_once_by_package": Counter(each.where.split(".")[1] for each in once if each.called),
        "functions_by_package": {
            name: functions(each for each in files if each.package == name) for name in sizes(files)
        },
    }


def report(found: Mapping[str, Any], *, listed: bool) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{'package':14}{'files':>7}{'lines':>9}{'functions':>11}{'called once':>13}"
    for name, (files, lines) in sorted(found["packages"].items()):
        number = found["functions_by_package"][name]
        once = found["called_once_by_package"].get(name, 0)
        percent = f"{100 * once / number:.0f} %" if number else "-"
        yield f"{name:14}{files:7}{lines:9,}{number:11,}{percent:>13}"
    files = sum(each[0] for each in found["packages"].values())
    lines = sum(each[1] for each in found["packages"].values())
    yield f"{'all':14}{files:7}{lines:9,}{found['functions']:11,}"
    shared = found["class_names"]
    yield f"class names with several meanings: {len(shared)}"
    yield from (f"  {name} ×{len(homes)}: {', '.join(homes)}" for name, homes in shared.items())
    for key, words in (
        ("single_use", "private functions used once"),
        ("called_once", "  of these called, and not handed on by name"),
        ("called_once_small", f"  called, and of at most {SMALL} lines"),
    ):
        share = 100 * len(found[key]) / found["functions"]
        yield f"{words}: {len(found[key]):,} ({share:.1f} %)"
    yield from (f"    {name}" for name in found["called_once_small"] if listed)
    yield (
        f"numeric constants without a reason: {len(found['without_reason'])} of {found['constants']}"
    )
    yield from (f"  {name}" for name in found["without_reason"] if listed)
    if "redrive" in found:
        trace = found["redrive"]
        yield f"one re-drive passes {len(trace['files'])} files, {trace['functions']} functions"
        yield f"and is carried by {len(trace['types'])} types:"
        yield from (f"  {name}" for name in trace["types"])
        yield from (f"    {name}" for name in trace["files"] if listed)


def _redrive_of(root: Path) -> Any:
    """Trace a re-drive in a separate interpreter with the source in `root`."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, str(Path(__file__).resolve()), "--trace-only"]
    ran = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, cwd=root
    )
    return json.loads(ran.stdout)


def _measure(root: Path, *, redrive: bool) -> dict[str, Any]:
    found = figures(root)
    return {**found, "redrive": _redrive_of(root)} if redrive else found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--redrive", action="store_true", help="also trace one re-drive")
    parser.add_argument(
        "--at", metavar="COMMIT", help="count this commit instead of the files here"
    )
    parser.add_argument("--list", action="store_true", help="list the counted items")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.add_argument("--trace-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace_only:
        print(json.dumps(trace_redrive()))
        return
    if options.at is None:
        found = _measure(ROOT, redrive=options.redrive)
    else:
        packed = subprocess.run(
            ["git", "archive", options.at, "src"], cwd=ROOT, check=True, stdout=subprocess.PIPE
        )
        with tempfile.TemporaryDirectory() as folder:
            unpacking = ["tar", "--extract", "--directory", str(folder)]
            subprocess.run(unpacking, input=packed.stdout, check=True)
            found = _measure(Path(folder), redrive=options.redrive)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for line in report(found, listed=options.list):
        print(line)


if __name__ == "__main__":
    main()
