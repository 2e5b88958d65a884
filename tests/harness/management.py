"""The calls of the management API that tests need themselves."""

from __future__ import annotations

import base64
import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

__all__ = ["Management", "ManagementFailed"]


class ManagementFailed(RuntimeError):
    """The HTTP API has returned an error with the given status."""

    def __init__(self, method: str, path: str, status: int, answer: str) -> None:
        self.status = status
        super().__init__(f"{method} {path} gave {status}: {answer[:500]}")


@dataclass(frozen=True, slots=True)
class Management:
    """The HTTP API of a node."""

    url: str
    patience: float = 20.0
    """Seconds to wait for a response. A node that is separated from its cluster may never respond.
    """

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to a path below `/api` and return the decoded response.

        Raises ManagementFailed if the status is an error.
        """
        address = urlsplit(self.url)
        line = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=self.patience
        )
        login = base64.b64encode(f"{address.username}:{address.password}".encode()).decode()
        content = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        try:
            line.request(method, f"/api{path}", content, headers)
            answer = line.getresponse()
            text = answer.read().decode(errors="replace")
        finally:
            line.close()
        if answer.status >= 400:
            raise ManagementFailed(method, path, answer.status, text)
        return json.loads(text) if text else None

    def is_up(self) -> bool:
        """Return True if the API responds."""
        try:
            self.call("GET", "/overview")
        except (OSError, http.client.HTTPException, ManagementFailed):
            return False
        return True

    def create_vhost(self, name: str) -> None:
        """Create a virtual host for guest if it does not exist.

        On a new cluster, the request may time out. In this case it is repeated and succeeds.
        """
        for more in (True, True, False):
            try:
                self.call("PUT", f"/vhosts/{quote(name, safe='')}", {})
                break
            except TimeoutError:
                if not more:
                    raise
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.call("PUT", f"/permissions/{quote(name, safe='')}/guest", everything)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host and everything in it."""
        self.call("DELETE", f"/vhosts/{quote(name, safe='')}")
