"""The web server of the demo: the application of every system, the pages, health and metrics.

One port serves all of them: a system under its name, the page of the demo at `/demo`, the admin page at `/`.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import socket
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, Router

from hopback.ops.http import LOOPBACK, host_of, is_same_origin
from hopback.runtime.depths import queues_to_watch
from hopback.systems import HOMES
from hopback.systems.comparison import COMPARISON, HEADINGS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from hopback import Service
    from hopback.observe.metrics import Metrics
    from hopback.runtime import Health
    from hopback.topology import Topology

_SAMPLE = re.compile(r"^hopback_(deliveries_total|queue_depth)\{(.*)\} (\S+)$", re.MULTILINE)
_CODE = re.compile("`([^`]+)`")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Counters(TypedDict):
    """The outcomes of a system's messages so far, and the number of messages in its queues."""

    came: int
    done: int
    retrying: int
    dead: int


@dataclass(frozen=True, slots=True)
class ShownSystem:
    """A system as the page shows it."""

    name: str
    title: str
    url: str
    topologies: tuple[Topology, ...]
    tries: tuple[tuple[str, str], ...]
    """Descriptions and commands."""

    @property
    def main_queue(self) -> str:
        """The queue whose surroundings the diagram shows."""
        return next(plan.queue for topology in self.topologies for plan in topology.plans)

    @property
    def dead_letter_queues(self) -> tuple[str, ...]:
        plans = (plan for topology in self.topologies for plan in topology.plans)
        return tuple(dict.fromkeys(plan.parking.queue for plan in plans))


def counters_of(systems: Iterable[ShownSystem], metrics: str) -> dict[str, Counters]:
    """Compute the counters of each system from the `/metrics` text."""
    runs: dict[tuple[str, str], int] = {}
    depths: dict[str, int] = {}
    for kind, labels, value in _SAMPLE.findall(metrics):
        known, number = dict(_LABEL.findall(labels)), float(value)
        if kind == "queue_depth":
            depths[known["queue"]] = int(number) if number == number else 0
        else:
            runs[known["queue"], known["outcome"]] = int(number)
    found = {}
    for system in systems:
        queues = [
            one
            for topology in system.topologies
            for one in queues_to_watch(topology, [plan.queue for plan in topology.plans])
        ]
        own = {one.queue for one in queues if one.role == "main"}
        held = {
            role: sum(depths.get(one.queue, 0) for one in queues if one.role == role)
            for role in ("main", "retry", "dead-letter")
        }
        done = sum(runs.get((name, "done"), 0) for name in own)
        found[system.name] = Counters(
            came=done + sum(held.values()),
            done=done,
            retrying=held["retry"],
            dead=held["dead-letter"],
        )
    return found


def front_page(systems: Sequence[ShownSystem], guide: str) -> str:
    """Render the page. It requests the counters every second."""
    cards = "".join(map(_card, systems))
    shop = next((one for one in systems if one.name == "ratatoskr"), None)
    incident = ""
    if shop is not None:
        queue = shop.dead_letter_queues[0]
        data = {"url": shop.url, "queue": queue, "page": f"/queues/{quote(queue, safe='')}"}
        steps = "".join(
            f"<li id=step{number}><button disabled>{html.escape(label)}</button> <span>{text}</span></li>"
            for number, (label, text) in enumerate(_STEPS, 1)
        )
        incident = (
            f"<section id=incident data-shop='{html.escape(json.dumps(data), quote=True)}'>"
            f"<h2>An incident, in five clicks</h2><ol>{steps}</ol></section>"
        )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Hopback demo</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>Hopback demo</h1><p>The documented systems run in this process, with sample traffic and "
        f"deliberate failures. <a href='/'>Dead letters, topology and checks</a> of all systems.</p>"
        f"<section class=cards>{cards}</section>{incident}{_comparison(systems)}"
        f"<details><summary>Addresses and commands for another terminal</summary>"
        f"<pre>{html.escape(guide)}</pre></details><script>{_SCRIPT}</script>"
    )


def _comparison(systems: Sequence[ShownSystem]) -> str:
    """Return the table that compares the systems shown."""
    names = {system.name for system in systems}
    head = "".join(f"<th scope=col>{html.escape(one)}</th>" for one in HEADINGS)
    rows = []
    for name, *cells in (one.cells() for one in COMPARISON if one.name in names):
        texts = (_CODE.sub(r"<code>\1</code>", html.escape(one)) for one in cells)
        columns = "".join(f"<td>{text}</td>" for text in texts)
        rows.append(f"<tr><th scope=row>{html.escape(name)}</th>{columns}</tr>")
    return (
        "<section><h2>How they differ</h2><div class=wide><table><thead><tr>"
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div><p>Publish is a confirmed publish, "
        "followed by an ack. Reject leaves the move to the broker, which moves a message at most once. "
        "The hardened form loses no messages.</p></section>"
    )


def _card(system: ShownSystem) -> str:
    counts = "".join(
        f"<div><b id='{system.name}-{key}'>–</b><span>{label}</span></div>"
        for key, label in (
            ("came", "in"),
            ("done", "done"),
            ("retrying", "retrying"),
            ("dead", "dead"),
        )
    )
    queues = ", ".join(
        f"<a href='/queues/{quote(queue, safe='')}'>{html.escape(queue)}</a>"
        for queue in system.dead_letter_queues
    )
    diagram = f"/topology?focus={quote(system.main_queue, safe='')}"
    links = (
        f"<a href='/demo/{system.name}/readme'>README</a>, <a href='{diagram}'>diagram</a>, "
        f"dead letters: {queues}"
    )
    tries = "".join(
        f"<p># {html.escape(shows)}</p><pre>{html.escape(command)}</pre>"
        for shows, command in system.tries
    )
    return (
        f"<article><h2>{html.escape(system.name)}</h2><p>{html.escape(system.title)}</p>"
        f"<div class=counts>{counts}</div><p class=links>{links}</p>"
        f"<details><summary>Commands to try</summary>{tries}</details></article>"
    )


_STEPS = (
    ("Break the warehouse", "closes Ratatoskr's warehouse and places five orders"),
    ("Watch", "each order fails and is retried three times, every 5 s. Then it is a dead letter"),
    ("Look at the dead letters", "opens their queue: the reason, the timeline, every attempt"),
    ("Repair the warehouse", "opens the warehouse. The dead letters stay in their queue"),
    ("Re-drive", "sends back only the messages that failed because of the warehouse"),
)
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1b1f24}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(20rem,1fr));gap:1rem}
article,#incident{border:1px solid #d0d7de;border-radius:8px;padding:1rem}
h2{margin:0;font-size:1.15rem}article p{margin:.3rem 0}#incident{margin:1rem 0}
.counts{display:grid;grid-template-columns:repeat(4,1fr);text-align:center;margin:.6rem 0}
.counts b{display:block;font-size:1.6rem;font-variant-numeric:tabular-nums}.counts span{color:#57606a}
.counts div:nth-child(3) b{color:#9a6700}.counts div:nth-child(4) b{color:#c62828}
.links{overflow-wrap:anywhere;font-size:.9rem}
.wide{overflow-x:auto;margin-top:.5rem}table{border-collapse:collapse;font-size:.85rem}
th,td{border:1px solid #d0d7de;padding:.35rem .5rem;text-align:left;vertical-align:top}
thead{background:#f6f8fa}
pre{overflow:auto;background:#f6f8fa;padding:.5rem;font-size:.85rem}
button{font:inherit;padding:.3rem .8rem;border-radius:6px;border:1px solid #0d47a1;
background:#0d47a1;color:#fff}
button:disabled{background:#eee;color:#6e7781;border-color:#ccc}
li{margin:.5rem 0}li.done button{background:#2e7d32;color:#fff}
"""
_SCRIPT = """
const show = counters => {
  for (const [name, found] of Object.entries(counters))
    for (const [key, value] of Object.entries(found)) {
      const place = document.getElementById(name + '-' + key);
      if (place) place.textContent = value;
    }
};
const refresh = async () => {
  try { show(await (await fetch('/demo/counters')).json()); } catch { /* the demo has ended */ }
};
refresh(); setInterval(refresh, 1000);
const incident = document.getElementById('incident');
if (incident) {
  const shop = JSON.parse(incident.dataset.shop);
  const run = Math.random().toString(36).slice(2, 8);
  const orders = [1, 2, 3, 4, 5].map(number => 'incident-' + run + '-' + number);
  const pause = () => new Promise(done => setTimeout(done, 1000));
  const send = async (method, url, body) => {
    const answer = await fetch(url, {method, headers: {'Content-Type': 'application/json'},
      body: JSON.stringify(body)});
    if (!answer.ok) throw new Error(answer.status + ' ' + await answer.text());
    return answer.json();
  };
  const dead = async () => (await (await fetch('/demo/counters')).json()).ratatoskr.dead;
  const placed = async () => (await Promise.all(orders.map(
    order => fetch(shop.url + '/orders/' + order)))).filter(answer => answer.ok).length;
  let before = 0;
  const steps = [
    async () => {
      before = await dead();
      await send('PUT', shop.url + '/warehouse', {open: false});
      for (const order of orders)
        await send('POST', shop.url + '/events', {type: 'order.placed', order, sku: 'acorn', quantity: 1});
      return 'the warehouse is closed, five orders are published';
    },
    async report => {
      for (let found = 0; (found = await dead() - before) < 5; await pause())
        report(Math.max(found, 0) + ' of 5 are dead letters, the others are retried');
      return 'all five are dead letters';
    },
    async () => { window.open(shop.page, '_blank'); return 'opened in another tab'; },
    async () => {
      await send('PUT', shop.url + '/warehouse', {open: true});
      return 'open; ' + await placed() + ' of 5 orders are placed';
    },
    async report => {
      const job = {kind: 're-drive', queue: shop.queue, reason: 'the warehouse is open again',
        selection: {filter: 'error:NotYet'}};
      try { await send('POST', '/admin/dlq/jobs', job); } catch (error) {
        if (!String(error).includes('unsafe')) throw error;
        // From RabbitMQ 4.0 on, browsing counts against the delivery limit of the queue. Lift it first.
        await send('POST', '/admin/dlq/queues/' + encodeURIComponent(shop.queue) + '/lift-limit', {});
        await send('POST', '/admin/dlq/jobs', job);
      }
      for (let found = 0; (found = await placed()) < 5; await pause())
        report(found + ' of 5 orders are placed');
      return 'all five orders are placed, the incident is over';
    },
  ];
  steps.forEach((step, index) => {
    const line = document.getElementById('step' + (index + 1));
    const button = line.querySelector('button'), text = line.querySelector('span');
    button.disabled = index > 0;
    button.onclick = async () => {
      button.disabled = true;
      try {
        text.textContent = await step(words => { text.textContent = words; });
        line.className = 'done';
        const next = document.querySelector('#step' + (index + 2) + ' button');
        if (next) next.disabled = false;
      } catch (error) { text.textContent = String(error); button.disabled = false; }
    };
  });
}
"""

_GRACE_S = 1  # seconds: a browser with an open stream must not delay the end of the demo
_BACKLOG = 128  # the traditional maximum of Linux. A browser opens six connections
_KEEP_ALIVE_S = 60  # a reader of the page thinks for a while between two clicks
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class DemoWeb:
    """The demo's web server. Systems and the page are added as they start."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._running: list[tuple[Service, Health]] = []
        self._guide = ""
        self._systems: tuple[ShownSystem, ...] = ()
        self._router = Router(
            [
                Route("/demo", self._show_page),
                Route("/demo/counters", self._count),
                Route("/demo/{name}/readme", self._show_readme),
                Route("/metrics", self._scrape),
                Route("/healthz", self._alive),
                Route("/readyz", self._ready),
            ],
            default=Starlette(routes=[Route("/", self._show_page)]),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, if it is made to this machine by its own name and by no other site."""
        answer: ASGIApp = self._router
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if host_of(headers) not in LOOPBACK:
                answer = PlainTextResponse("This demo serves localhost and 127.0.0.1 only.\n", 421)
            elif scope["method"] not in _SAFE and not is_same_origin(headers, silent=True):
                answer = PlainTextResponse("Changes from other sites are refused.\n", 403)
        await answer(scope, receive, send)

    def add(self, name: str, web: ASGIApp) -> None:
        """Serve a system's web application under its name."""
        self._router.routes.append(Mount(f"/{name}", web))

    def watch(self, service: Service, health: Health) -> None:
        """Include a service in the probes and the metrics."""
        self._running.append((service, health))

    def open_page(self, page: ASGIApp) -> None:
        """Serve the admin page at the root."""
        self._router.default = page

    def show(self, systems: Sequence[ShownSystem], guide: str) -> None:
        """Set the content of `/demo`."""
        self._systems, self._guide = tuple(systems), guide

    async def _show_page(self, _request: Request) -> Response:
        return HTMLResponse(front_page(self._systems, self._guide))

    async def _show_readme(self, request: Request) -> Response:
        home = HOMES.get(request.path_params["name"])
        if home is None:
            return PlainTextResponse("There is no such system.\n", 404)
        readme = files(home).joinpath("README.md").read_text(encoding="utf-8")
        return PlainTextResponse(readme)

    async def _count(self, _request: Request) -> Response:
        return JSONResponse(counters_of(self._systems, self._metrics.render().decode()))

    async def _scrape(self, _request: Request) -> Response:
        for service, _ in self._running:
            for consumer in service.consumers:
                self._metrics.set_in_flight(consumer.queue, consumer.in_flight)
        return Response(self._metrics.render(), media_type=self._metrics.content_type)

    async def _alive(self, _request: Request) -> Response:
        return _health_response(
            {one.app.name: health.alive().reasons for one, health in self._running}
        )

    async def _ready(self, _request: Request) -> Response:
        return _health_response(
            {one.app.name: health.ready().reasons for one, health in self._running}
        )


def _health_response(reasons_by_system: dict[str, tuple[str, ...]]) -> Response:
    """Return 503 with the reasons if a system is not healthy."""
    reasons = [reason for each in reasons_by_system.values() for reason in each]
    body = {"systems": list(reasons_by_system), "reasons": reasons}
    return JSONResponse(body, 503 if reasons else 200)


class _ServerWithoutSignals(uvicorn.Server):
    """Leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError if the port is in use. Port 0 selects a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


@asynccontextmanager
async def serve_on(app: ASGIApp, listening: socket.socket) -> AsyncIterator[None]:
    """Serve on the socket for as long as the block lasts."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _ServerWithoutSignals(config)
    serving = asyncio.create_task(server.serve([listening]), name="demo web server")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        listening.close()


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Run the lifespan of a web application by the ASGI protocol, without a server."""
    events: asyncio.Queue[str] = asyncio.Queue()
    answers: asyncio.Queue[str] = asyncio.Queue()

    async def receive() -> dict[str, Any]:
        return {"type": await events.get()}

    async def send(message: Any) -> None:
        answers.put_nowait(message["type"])

    scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
    life = asyncio.ensure_future(app(scope, receive, send))
    events.put_nowait("lifespan.startup")
    await answers.get()
    try:
        yield
    finally:
        events.put_nowait("lifespan.shutdown")
        await life
