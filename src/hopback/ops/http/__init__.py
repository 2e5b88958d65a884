"""The HTTP service of the operator tools, which provides an API and a page.

`create_app` returns the ASGI application, and `serve` runs it. The package needs the extra `ops`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.extras import needs
from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.ops.http.app import (
        LOOPBACK as LOOPBACK,
        create_app as create_app,
    )
    from hopback.ops.http.auth import (
        forbidden as forbidden,
        is_same_origin as is_same_origin,
        unauthorized as unauthorized,
    )
    from hopback.ops.http.problems import (
        Refused as Refused,
        problem_body as problem_body,
        refusal_of as refusal_of,
    )
    from hopback.ops.contract.roles import Role as Role
    from hopback.ops.http.server import refuse_public as refuse_public, serve as serve
    from hopback.ops.http.shell import host_of as host_of
    from hopback.ops.http.settings import (
        AdminSettings as AdminSettings,
        read_settings as read_settings,
    )
    from hopback.ops.http.tokens import (
        BadToken as BadToken,
        JwtSettings as JwtSettings,
        TokenReader as TokenReader,
        token_reader as token_reader,
    )

with needs("ops", "hopback serve"):
    import h11  # noqa: F401
    import jinja2  # noqa: F401
    import jwt  # noqa: F401
    import msgspec  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401

__getattr__, __dir__ = front_door(
    __name__,
    {
        "hopback.ops.http.app": "LOOPBACK create_app",
        "hopback.ops.http.auth": "forbidden is_same_origin unauthorized",
        "hopback.ops.http.problems": "Refused problem_body refusal_of",
        "hopback.ops.contract.roles": "Role",
        "hopback.ops.http.shell": "host_of",
        "hopback.ops.http.server": "refuse_public serve",
        "hopback.ops.http.settings": "AdminSettings read_settings",
        "hopback.ops.http.tokens": "BadToken JwtSettings TokenReader token_reader",
    },
)
