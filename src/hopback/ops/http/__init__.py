"""The admin service: dead letters, jobs, topology, checks and audit by HTTP and on a page.

Needs the extra `admin`. `create_app` makes the ASGI application, `serve` runs it. Nothing is decided
here: requests are read, the operations are called, their answers are written.
"""

from __future__ import annotations

from hopback.extras import needs

with needs("admin", "hopback.ops.http"):
    from hopback.ops.http.app import create_app
    from hopback.ops.http.server import refuse_public, serve
    from hopback.ops.http.settings import AdminSettings, read_settings

__all__ = ["AdminSettings", "create_app", "read_settings", "refuse_public", "serve"]
