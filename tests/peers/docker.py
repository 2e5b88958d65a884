"""As much of Docker's API as aio-pika's suite uses to find a broker: the one that runs here already.

It asks Docker for a container with RabbitMQ and connects to the ports it tells. So it runs
unchanged, without Docker.
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
        """What a container is."""
        self._answer({"Id": "here", "NetworkSettings": {"Ports": _PORTS}})

    def do_POST(self) -> None:
        """Pull, create, start, stop, kill: all is done already."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer({"Id": "here"})

    def do_DELETE(self) -> None:
        """Gone."""
        self._answer({})

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        """A client on a Unix socket has no address."""
        return "here"

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def docker_at(path: Path) -> Iterator[str]:
    """Serve on a socket; the value for DOCKER_HOST."""
    path.unlink(missing_ok=True)
    with _Server(str(path), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()
    path.unlink(missing_ok=True)
