"""The part of Docker's API with which aio-pika's suite finds a broker: it returns the running one.

The suite requests a RabbitMQ container and connects to the ports in the answer. It runs unchanged
and without Docker.
"""

from __future__ import annotations

import json
import socketserver
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["docker_at"]

_PORTS = {f"{port}/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(port)}] for port in (5672, 5671)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Describe the container."""
        self._answer({"Id": "here", "NetworkSettings": {"Ports": _PORTS}})

    def do_POST(self) -> None:
        """Accept pull, create, start, stop and kill without effect."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer({"Id": "here"})

    def do_DELETE(self) -> None:
        """Accept the removal without effect."""
        self._answer({})

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        """Return a fixed name: clients on a Unix socket have no address."""
        return "here"

    def log_message(self, *_arguments: object) -> None:
        """Log no requests."""


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def docker_at(path: Path) -> Iterator[str]:
    """Serve on a socket and yield the value for DOCKER_HOST."""
    path.unlink(missing_ok=True)
    with _Server(str(path), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()
    path.unlink(missing_ok=True)
