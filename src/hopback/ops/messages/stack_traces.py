"""Find the root cause in a stack trace of any common language.

Frameworks wrap the exceptions of handlers: Spring in a ListenerExecutionFailedException, .NET in an
AggregateException, Symfony in a HandlerFailedException. If failures were grouped by the wrapper,
all failures of a service would be in the same group. They are distinguished by the root cause and
the first frame of the application in it.

The functions are pure, accept any text and take linear time.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LONGEST_STACK = 64 * 1024  # characters that are read. Longer stacks are repetitive.
_MOST_LINES = 2000  # lines that are read. A deep recursion is repetitive.
# Java writes `Caused by: org.example.Failed: text`, and Node.js writes `[cause]: TypeError: text`.
_CAUSED_BY = re.compile(r"(?:Caused by|\[cause\]):\s*(.+)")
_INNER = re.compile(r"-{2,3}> (?:\(Inner Exception #\d+\) )?")
# Elixir processes write `** (RuntimeError) text`.
_ELIXIR = re.compile(r"\*\* \(([A-Z][\w.]*)\)\s*(.*)")
_TYPED = re.compile(r"([A-Za-z_$][\w$.\\`+:]*?)(?::\s+(.*)|:?\s*)")
_PYTHON_FRAME = re.compile(r'File "([^"]+)", line \d+, in (\S+)')
_ELIXIR_FRAME = re.compile(r"(?:\([\w.-]+(?: [\w.-]+)?\) )?\S+\.exs?:\d+: ([\w.]+/\d+)")
_RUBY_FRAME = re.compile(r"(\S+\.rb):\d+:in [`']([^'`]+)'")
_PHP_FRAME = re.compile(r"#\d+ (?:\S+\(\d+\): )?([\w\\]+(?:->|::)\w+)")
_FOREIGN = (
    "java.", "javax.", "jakarta.", "jdk.", "sun.", "com.sun.", "kotlin.", "scala.", "reactor.",
    "org.springframework.", "org.apache.", "org.hibernate.", "org.postgresql.", "com.rabbitmq.",
    "com.zaxxer.", "com.mysql.", "io.netty.", "io.micrometer.", "System.", "Microsoft.", "MassTransit.",
    "NServiceBus.", "RabbitMQ.", "Npgsql.", "MySql.", "Castle.", "Newtonsoft.", "GreenPipes.",
    "Symfony\\", "Doctrine\\", "node:", "internal/", "process.", "Broadway.", "GenServer.", "Task.",
    ":proc_lib.", ":gen_server.",
)  # fmt: skip
_LIBRARIES = ("node_modules", "site-packages", "dist-packages", "/gems/", "/vendor/", "/deps/")


class RootCause(NamedTuple):
    """The type and message of the innermost exception, and the first frame of the application in it."""

    type: str
    message: str
    frame: str


def root_cause(kind: str, message: str, stack: str) -> RootCause:
    """Return the last cause in a stack. If there is none, use `kind` and `message`."""
    lines = stack[:_LONGEST_STACK].splitlines()[:_MOST_LINES]
    begins = 0
    for number, line in enumerate(lines):
        found = _cause_in(line.strip())
        if found is not None:
            (kind, message), begins = found, number
    frame = _frame(lines[begins:])
    if not frame and begins:
        frame = _frame(lines)
    return RootCause(kind, message, frame)


def _cause_in(line: str) -> tuple[str, str] | None:
    """Return type and message if a line contains a cause."""
    found = _CAUSED_BY.match(line)
    if found is not None:
        return _split_type(found[1])
    wrapped = _INNER.split(line)
    if len(wrapped) > 1:  # .NET writes all causes in the first line. The last one is the innermost.
        inner = _split_type(wrapped[-1])
        return inner if inner[0] else None
    found = _ELIXIR.match(line)
    return None if found is None else (found[1], found[2].strip())


def _split_type(text: str) -> tuple[str, str]:
    """Split `org.example.Failed: text` into type and message. Without a type, the whole text is the
    message.
    """
    found = _TYPED.fullmatch(text.strip().removesuffix("{").strip())
    return ("", text) if found is None else (found[1], found[2] or "")


def _frame(lines: list[str]) -> str:
    """Return the first frame of the application, or the first frame of the stack if there is none."""
    first, is_python = "", False
    frames: list[str] = []
    for line in lines:
        words = line.strip()
        if words.startswith("at ") and ("(" in words or "." in words):
            frame = words.removeprefix("at ").removeprefix("async ")
            name = frame.partition("(")[0].partition(" in ")[0].strip()
            is_own = not name.startswith(_FOREIGN) and not any(part in frame for part in _LIBRARIES)
        elif (match := _PYTHON_FRAME.match(words)) is not None:
            is_python = True
            name = f"{match[1].replace(chr(92), '/').rpartition('/')[2]}:{match[2]}"
            is_own = not any(part in match[1] for part in _LIBRARIES)
        else:
            match = (
                _ELIXIR_FRAME.match(words) or _RUBY_FRAME.match(words) or _PHP_FRAME.match(words)
            )
            if match is None:
                continue
            name = ":".join(match.groups())
            is_own = not name.startswith(_FOREIGN) and not any(part in words for part in _LIBRARIES)
        first = first or name
        if is_own:
            frames.append(name)
            if not is_python:
                break
    # Python writes the innermost frame last.
    return (frames[-1] if is_python else frames[0]) if frames else first
