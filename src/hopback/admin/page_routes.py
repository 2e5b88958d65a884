"""All routes of the page, with its files and its live line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from hopback.admin.live import changes_of_board
from hopback.admin.pages import Pages
from hopback.admin.pages_access import add_access_pages, sign_in_routes
from hopback.admin.pages_acts import add_act_pages
from hopback.admin.pages_deadletters import add_deadletter_pages
from hopback.admin.pages_jobs import add_job_pages
from hopback.admin.pages_topology import add_topology_pages

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from hopback.admin.pages import Visit
    from hopback.admin.services import Services

__all__ = ["page_routes"]


class _Files(StaticFiles):
    """Files that browsers keep, and ask about before they use them."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


def page_routes(services: Services, templates: Environment) -> list[BaseRoute]:
    """The routes of the page."""
    pages = Pages(services, templates)
    add_deadletter_pages(pages)
    add_act_pages(pages)
    add_job_pages(pages)
    add_topology_pages(pages)
    add_access_pages(pages)
    pages.add("GET", "/live", _live)
    files = _Files(directory=Path(__file__).with_name("static"))
    return [*sign_in_routes(services, templates), *pages.routes, Mount("/static", files)]


async def _live(visit: Visit) -> Response:
    return visit.services.streams.open(changes_of_board(visit.services), visit.principal)
