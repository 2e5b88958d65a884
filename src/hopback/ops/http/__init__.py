"""The HTTP service of the operator tools: dead letters, jobs, topology, checks and audit as API and page.

`create_app` returns the ASGI application and `serve` runs it. The package needs the extra `admin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.extras import needs
from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.ops.http.app import create_app as create_app
    from hopback.ops.http.server import refuse_public as refuse_public, serve as serve
    from hopback.ops.http.settings import (
        AdminSettings as AdminSettings,
        read_settings as read_settings,
    )

with needs("admin", "hopback.ops.http"):
    import h11  # noqa: F401
    import jinja2  # noqa: F401
    import jwt  # noqa: F401
    import msgspec  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401

__getattr__, __dir__ = front_door(
    __name__,
    {
        "hopback.ops.http.app": "create_app",
        "hopback.ops.http.server": "refuse_public serve",
        "hopback.ops.http.settings": "AdminSettings read_settings",
    },
)
