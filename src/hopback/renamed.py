"""Modules and names that were called otherwise in an earlier version: they are still found, with a warning.

The finder gives out the module of today itself: a class reached by its old path is the same class.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = [
    "RENAMED",
    "OldNameLookup",
    "OldNames",
    "find_old_names",
    "new_name",
    "old_names",
    "warn_of_old",
]

RENAMED = {
    "hopback.admin.alert_sending": "hopback.admin.alerts",
    "hopback.admin.alert_settings": "hopback.admin.settings",
    "hopback.admin.alerting": "hopback.admin.alerts",
    "hopback.admin.answers": "hopback.admin.api_deadletters",
    "hopback.admin.answers_messages": "hopback.admin.api_deadletters",
    "hopback.admin.api_access": "hopback.admin.access",
    "hopback.admin.api_alerts": "hopback.admin.alerts",
    "hopback.admin.api_jobs": "hopback.admin.api_deadletters",
    "hopback.admin.api_notes": "hopback.admin.notes",
    "hopback.admin.api_queues": "hopback.admin.api_deadletters",
    "hopback.admin.api_topology": "hopback.admin.topology",
    "hopback.admin.application": "hopback.admin.app",
    "hopback.admin.content": "hopback.admin.rendering",
    "hopback.admin.cookies": "hopback.admin.auth",
    "hopback.admin.denials": "hopback.admin.services",
    "hopback.admin.documented_messages": "hopback.admin.documented",
    "hopback.admin.documented_schema": "hopback.admin.documented",
    "hopback.admin.endpoints": "hopback.admin.api",
    "hopback.admin.gate": "hopback.admin.auth",
    "hopback.admin.granted_targets": "hopback.admin.services",
    "hopback.admin.insights": "hopback.admin.overview",
    "hopback.admin.job_events": "hopback.admin.events",
    "hopback.admin.limiting": "hopback.admin.auth",
    "hopback.admin.live": "hopback.admin.events",
    "hopback.admin.livebroker": "hopback.admin.services",
    "hopback.admin.openapi": "hopback.admin.api",
    "hopback.admin.page_routes": "hopback.admin.app",
    "hopback.admin.pages_access": "hopback.admin.access",
    "hopback.admin.pages_acts": "hopback.admin.pages_jobs",
    "hopback.admin.pages_alerts": "hopback.admin.alerts",
    "hopback.admin.pages_notes": "hopback.admin.notes",
    "hopback.admin.pages_topology": "hopback.admin.topology",
    "hopback.admin.shell": "hopback.admin.app",
    "hopback.admin.streams": "hopback.admin.events",
    "hopback.admin.sweep": "hopback.admin.overview",
    "hopback.admin.tokens": "hopback.admin.auth",
    "hopback.admin.topology_map": "hopback.admin.topology_drawing",
    "hopback.broker.apply_plan": "hopback.broker.apply",
    "hopback.broker.embedded.consumer_timeout": "hopback.broker.embedded.consumers",
    "hopback.broker.embedded.deadletter": "hopback.broker.embedded.dead_lettering",
    "hopback.broker.embedded.deaths": "hopback.broker.embedded.dead_lettering",
    "hopback.broker.embedded.delays": "hopback.broker.embedded.timers",
    "hopback.broker.embedded.intake": "hopback.broker.embedded.node",
    "hopback.broker.embedded.lanes": "hopback.broker.embedded.ready",
    "hopback.broker.embedded.lease": "hopback.broker.embedded.timers",
    "hopback.broker.embedded.line": "hopback.broker.embedded.connection",
    "hopback.broker.embedded.outcome": "hopback.broker.embedded.refusal",
    "hopback.broker.embedded.patience": "hopback.broker.embedded.consumers",
    "hopback.broker.embedded.policies": "hopback.broker.embedded.settings",
    "hopback.broker.embedded.publish_checks": "hopback.broker.embedded.node",
    "hopback.broker.embedded.queue_expiry": "hopback.broker.embedded.timers",
    "hopback.broker.embedded.replies": "hopback.broker.embedded.connection",
    "hopback.broker.embedded.rota": "hopback.broker.embedded.consumers",
    "hopback.broker.embedded.ticks": "hopback.broker.embedded.timers",
    "hopback.broker.embedded.wiring": "hopback.broker.embedded.routing",
    "hopback.broker.inequivalent": "hopback.broker.declare",
    "hopback.broker.management.address": "hopback.broker.management.client",
    "hopback.broker.management.http": "hopback.broker.management.client",
    "hopback.broker.move": "hopback.broker.migrate",
    "hopback.broker.policies": "hopback.broker.limits",
    "hopback.broker.probe": "hopback.broker.declare",
    "hopback.broker.rabbitmq.faults": "hopback.broker.rabbitmq.channel",
    "hopback.broker.rabbitmq.publishing": "hopback.broker.rabbitmq.channel",
    "hopback.broker.restore": "hopback.broker.declare",
    "hopback.broker.server.api_caller": "hopback.broker.server.api_users",
    "hopback.broker.server.api_connections": "hopback.broker.server.api_objects",
    "hopback.broker.server.api_health": "hopback.broker.server.api",
    "hopback.broker.server.api_messages": "hopback.broker.server.api_changes",
    "hopback.broker.server.api_pages": "hopback.broker.server.api",
    "hopback.broker.server.greeting": "hopback.broker.server.client",
    "hopback.broker.server.house": "hopback.broker.server.served",
    "hopback.broker.server.json_values": "hopback.broker.server.api_users",
    "hopback.broker.server.line": "hopback.broker.server.client",
    "hopback.broker.server.methods": "hopback.broker.server.channel",
    "hopback.broker.server.permissions": "hopback.broker.server.users",
    "hopback.broker.server.pressure": "hopback.broker.server.served",
    "hopback.broker.server.replies": "hopback.broker.embedded.direct_replies",
    "hopback.broker.server.socket": "hopback.broker.server.client",
    "hopback.broker.server.transaction": "hopback.broker.server.channel",
    "hopback.broker.simulator": "hopback.broker.embedded",
    "hopback.broker.simulator.embedded": "hopback.broker.embedded.broker",
    "hopback.broker.version_notices": "hopback.broker.doctor",
    "hopback.deadletters.acts": "hopback.deadletters.actions",
    "hopback.deadletters.after_failure": "hopback.deadletters.actions",
    "hopback.deadletters.audit": "hopback.deadletters.contract",
    "hopback.deadletters.browsing": "hopback.deadletters.session",
    "hopback.deadletters.candidates": "hopback.deadletters.discovery",
    "hopback.deadletters.ceremonies": "hopback.deadletters.job",
    "hopback.deadletters.cost": "hopback.deadletters.discovery",
    "hopback.deadletters.desk": "hopback.deadletters.plan",
    "hopback.deadletters.documents": "hopback.deadletters.journal_sql",
    "hopback.deadletters.editing": "hopback.deadletters.actions",
    "hopback.deadletters.envelopes": "hopback.deadletters.message",
    "hopback.deadletters.files": "hopback.deadletters.archive",
    "hopback.deadletters.foreign": "hopback.deadletters.frameworks",
    "hopback.deadletters.freezing": "hopback.deadletters.plan",
    "hopback.deadletters.importing": "hopback.deadletters.actions",
    "hopback.deadletters.jobs": "hopback.deadletters.journal",
    "hopback.deadletters.letters": "hopback.deadletters.message",
    "hopback.deadletters.moving": "hopback.deadletters.engine",
    "hopback.deadletters.operations": "hopback.deadletters.service",
    "hopback.deadletters.overview": "hopback.deadletters.contract",
    "hopback.deadletters.pacing": "hopback.deadletters.actions",
    "hopback.deadletters.places": "hopback.deadletters.live",
    "hopback.deadletters.plain": "hopback.deadletters.message",
    "hopback.deadletters.planning": "hopback.deadletters.plan",
    "hopback.deadletters.plans": "hopback.deadletters.contract",
    "hopback.deadletters.refusals": "hopback.errors",
    "hopback.deadletters.selecting": "hopback.deadletters.cursor_driver",
    "hopback.deadletters.sessions": "hopback.deadletters.session",
    "hopback.deadletters.settings": "hopback.deadletters.requests",
    "hopback.deadletters.showing": "hopback.deadletters.views",
    "hopback.deadletters.sql_journal": "hopback.deadletters.journal_sql",
    "hopback.deadletters.stories": "hopback.deadletters.message",
    "hopback.deadletters.stream": "hopback.deadletters.head",
    "hopback.deadletters.taking": "hopback.deadletters.head",
    "hopback.deadletters.trouble": "hopback.deadletters.engine",
    "hopback.deadletters.walking": "hopback.deadletters.head",
    "hopback.deadletters.watching": "hopback.deadletters.return_watch",
    "hopback.deadletters.work": "hopback.deadletters.engine",
    "hopback.deadletters.workshop": "hopback.deadletters.job",
    "hopback.headers.deaths": "hopback.headers.history",
    "hopback.headers.text": "hopback.text",
    "hopback.integrations.addresses": "hopback.integrations.planned",
    "hopback.integrations.loop_thread": "hopback.integrations.planned",
    "hopback.observe.bridge": "hopback.observe.logs",
    "hopback.patterns": "hopback.designs",
    "hopback.policy.attempts": "hopback.policy.reading",
    "hopback.policy.marking": "hopback.policy.effects",
    "hopback.policy.raw_redrive": "hopback.policy.redrive",
    "hopback.policy.rules": "hopback.policy.outcome",
    "hopback.policy.status": "hopback.policy.outcome",
    "hopback.rehearse.scenario_file": "hopback.rehearse.scenario",
    "hopback.runtime.assembly": "hopback.runtime.service",
    "hopback.runtime.bare_numbers": "hopback.runtime.context",
    "hopback.runtime.batch": "hopback.runtime.handler",
    "hopback.runtime.braking": "hopback.runtime.consumer",
    "hopback.runtime.control": "hopback.runtime.health",
    "hopback.runtime.discovery": "hopback.cli.run",
    "hopback.runtime.intake": "hopback.runtime.consumer",
    "hopback.runtime.isolating": "hopback.runtime.batches",
    "hopback.runtime.lanes": "hopback.runtime.pool",
    "hopback.runtime.limits": "hopback.runtime.handler",
    "hopback.runtime.outgoing": "hopback.runtime.context",
    "hopback.runtime.reload": "hopback.runtime.processes",
    "hopback.runtime.running": "hopback.runtime.worker",
    "hopback.runtime.schemas": "hopback.runtime.message_types",
    "hopback.runtime.shape": "hopback.runtime.payload",
    "hopback.runtime.upkeep": "hopback.runtime.service",
    "hopback.runtime.vetting": "hopback.runtime.service",
    "hopback.runtime.work": "hopback.runtime.worker",
    "hopback.store.alerts": "hopback.store.admin",
    "hopback.store.audit": "hopback.deadletters.journal_sql",
    "hopback.store.cursor": "hopback.store.transaction",
    "hopback.store.document": "hopback.store.transaction",
    "hopback.store.jobs": "hopback.deadletters.journal_sql",
    "hopback.store.keys": "hopback.store.admin",
    "hopback.store.migrations": "hopback.store.database",
    "hopback.store.outbox": "hopback.store.transaction",
    "hopback.store.schema": "hopback.store.database",
    "hopback.systems.stage": "hopback.systems.host",
    "hopback.testing.app_thread": "hopback.testing.threads",
    "hopback.testing.broker_thread": "hopback.testing.threads",
    "hopback.testing.conformance.bench": "hopback.testing.conformance.subject",
    "hopback.testing.conformance.chapters.delayed_retry": "hopback.testing.conformance.chapters.quorum",
    "hopback.testing.conformance.chapters.looking": "hopback.testing.conformance.chapters.returning",
    "hopback.testing.conformance.differences": "hopback.testing.conformance.exercise",
    "hopback.testing.conformance.expect": "hopback.testing.conformance.row",
    "hopback.testing.entrance": "hopback.topology.routing",
    "hopback.testing.producing": "hopback.testing.kit",
    "hopback.testing.rehearsal": "hopback.testing.kit",
    "hopback.testing.script": "hopback.testing.simulate",
    "hopback.testing.sequence": "hopback.testing.simulate",
    "hopback.testing.timeline": "hopback.testing.simulate",
    "hopback.topology.capabilities": "hopback.topology.rabbitmq_arguments",
    "hopback.topology.definitions_objects": "hopback.topology.definitions",
    "hopback.topology.definitions_source": "hopback.topology.definitions",
    "hopback.topology.diagram.flow": "hopback.topology.diagram",
    "hopback.topology.diagram.labels": "hopback.topology.diagram",
    "hopback.topology.diagram.sequence": "hopback.topology.diagram",
    "hopback.topology.diagram.states": "hopback.topology.diagram",
    "hopback.topology.diagram.subject": "hopback.topology.diagram",
    "hopback.topology.diff_advice": "hopback.topology.diff",
    "hopback.topology.document_plans": "hopback.topology.document",
    "hopback.topology.document_reader": "hopback.topology.document",
    "hopback.topology.document_short": "hopback.topology.document",
    "hopback.topology.document_writer": "hopback.topology.document",
    "hopback.topology.hazards.arrivals": "hopback.topology.hazards.analysis",
    "hopback.topology.hazards.loops": "hopback.topology.hazards.deadlettering",
    "hopback.topology.hazards.names": "hopback.topology.hazards.declarations",
    "hopback.topology.hazards.phrases": "hopback.topology.hazards.rule",
    "hopback.topology.hazards.scene": "hopback.topology.hazards.analysis",
    "hopback.topology.importable": "hopback.topology.definitions",
    "hopback.topology.json_values": "hopback.topology.arguments",
    "hopback.topology.places": "hopback.topology.located",
    "hopback.topology.recommended_form": "hopback.topology.document",
    "hopback.topology.secrets": "hopback.topology.definitions",
    "hopback.topology.toml": "hopback.topology.document",
    "hopback.topology.validate_plan": "hopback.topology.validate",
    "hopback.topology.words": "hopback.topology.wording",
    "hopback.wire.assembly": "hopback.wire.channel",
    "hopback.wire.contents": "hopback.wire.events",
    "hopback.wire.credentials": "hopback.wire.handshake",
    "hopback.wire.faults": "hopback.wire.frames",
    "hopback.wire.pulse": "hopback.wire.transport",
    "hopback.wire.states": "hopback.wire.frames",
}
"""Old name → new name, of modules and packages; what stands below a package follows it."""


def new_name(old: str) -> str | None:
    """What a module is called now, or None where it never had another name."""
    if not old.startswith("hopback."):
        return None
    package, below = old, ""
    while package not in RENAMED:
        package, _, last = package.rpartition(".")
        if not package:
            return None
        below = f".{last}{below}"
    return RENAMED[package] + below


class OldNames:
    """Finds a module by the name it had; loading it is importing the one of today."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Nothing, unless the name is an old one."""
        del path, target
        now = new_name(fullname)
        if now is None:
            return None
        import warnings
        from importlib.machinery import ModuleSpec

        warnings.warn(
            f"{fullname} is called {now} now; the old name goes with version 1.0",
            DeprecationWarning,
            stacklevel=2,
        )
        loader: Any = self  # a loader by its methods: importlib.abc is not light
        return ModuleSpec(fullname, loader, origin=now, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module of today, under both names."""
        import importlib

        module = importlib.import_module(spec.origin or "")
        # The machinery now writes the old spec into the module; exec_module puts the true one back.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run twice."""
        old = module.__spec__
        if old is None or not isinstance(cast("object", old.loader), OldNames):
            return
        module.__spec__ = old.loader_state
        # Python makes a module an attribute of the one above it. What has that name there today stays.
        above, _, name = old.name.rpartition(".")
        home = sys.modules[above]
        if callable(getattr(home, name, None)):
            home.__class__ = _keeping_functions()


def _keeping_functions() -> type[ModuleType]:
    """The class of a module in which a function or class is not replaced by a module of its name."""
    from types import ModuleType  # light, but only an old name needs it

    class KeepingFunctions(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            if not (isinstance(value, ModuleType) and callable(self.__dict__.get(name))):
                super().__setattr__(name, value)

    return KeepingFunctions


def find_old_names() -> None:
    """Ask for old names from now on, once per process."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        # First, or Python would find the files of a renamed package once more, under its old name.
        sys.meta_path.insert(0, cast("Any", OldNames()))


OldNameLookup: TypeAlias = "Callable[[str], object]"
"""A module's `__getattr__` that knows its old names."""


def old_names(module: str, names: Mapping[str, str | tuple[object, str]]) -> OldNameLookup:
    """The `__getattr__` of a module some of whose names were other ones: old name → name of today.

    A name that stands in another module now is given with that module. Where nothing has taken the
    place of the old name, it is given as the object to hand out and what to use instead.
    """

    def find(name: str) -> object:
        """What the old name stood for, with a warning; AttributeError if it never was one."""
        now = names.get(name)
        if now is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        import importlib
        import warnings

        if isinstance(now, str):
            home, _, name_now = now.rpartition(".")
            found: object = getattr(importlib.import_module(home or module), name_now)
            advice = f"is called {now} now; the old name goes with version 1.0"
        else:
            found, instead = now
            advice = f"goes with version 1.0; use {instead}"
        warnings.warn(f"{module}.{name} {advice}", DeprecationWarning, stacklevel=2)
        return found

    return find


def warn_of_old(name: str, now: str) -> None:
    """Say that an attribute has another name; to be called by the property that still has the old one."""
    import warnings

    warnings.warn(
        f"{name} is called {now} now; the old name goes with version 1.0",
        DeprecationWarning,
        stacklevel=3,
    )
