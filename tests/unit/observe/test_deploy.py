"""The dashboard and the alert rules speak of metrics that there are, with labels that they have."""

from __future__ import annotations

import json
import re
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from hopback.observe.events import EVENTS
from hopback.observe.metrics import Metrics

_DEPLOY = Path(__file__).parents[3] / "deploy"
_DASHBOARD: dict[str, Any] = json.loads((_DEPLOY / "grafana/hopback.json").read_text())
_RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((_DEPLOY / "prometheus/hopback-alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
_FUNCTIONS = {
    *("sum", "max", "topk", "rate", "increase", "deriv", "histogram_quantile"),
    *("by", "and"),
}
_ADDED = {"instance", "le"}
"""Labels that Prometheus and histograms add."""


def _expressions() -> list[str]:
    panels = [target["expr"] for panel in _DASHBOARD["panels"] for target in panel["targets"]]
    return panels + [rule["expr"] for rule in _RULES]


def _known() -> dict[str, set[str]]:
    """Every name that a scrape may show, with its labels: read from one after every kind of event."""
    metrics = Metrics()
    values = {"duration": 1.0, "size": 1, "failed": 1, "state": "ready", "late": 1.0}
    for name, kind in EVENTS.items():
        metrics(name, {field: values.get(field, "any") for field in kind.fields})
    metrics.set_in_flight("any", 1)
    metrics.set_depth("any", "main", 1)
    metrics.set_held_back("any", 1)
    return {
        sample.name: set(sample.labels) - _ADDED
        for family in metrics.registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


_KNOWN = _known()


@pytest.mark.parametrize("expression", _expressions())
def test_expression_names_existing_metrics_and_labels(expression: str) -> None:
    assert all(expression.count(a) == expression.count(b) for a, b in ("()", "{}", "[]"))
    bare = re.sub(r'"[^"]*"|\[[^]]*\]', "", expression)
    words = set(re.findall(r"[a-z_]+", bare))
    named = {word for word in words if word.startswith("hopback_")}
    assert named
    assert named <= set(_KNOWN)
    labels = set.union(*(_KNOWN[name] for name in named)) | _ADDED
    assert words - named - _FUNCTIONS <= labels


@pytest.mark.parametrize("expression", _expressions())
def test_counters_are_read_as_rates(expression: str) -> None:
    for function, name in re.findall(r"(\w+)\((hopback_\w+)", expression):
        counts = name.endswith(("_total", "_bucket"))
        assert function in (("rate", "increase") if counts else ("sum", "max", "deriv")), name
    assert not re.search(r"(?<!rate\()(?<!increase\()\bhopback_\w+_(total|bucket)\b", expression)


def test_every_metric_is_on_dashboard() -> None:
    shown = " ".join(
        target["expr"] for panel in _DASHBOARD["panels"] for target in panel["targets"]
    )
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in _KNOWN}
    assert [name for name in sorted(families) if name not in shown] == []


def test_dashboard_can_be_imported() -> None:
    panels = _DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        assert not (_cells(one) & _cells(other))
    variables = {one["name"] for one in _DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(_DASHBOARD)))
    assert used == variables == {"datasource", "queue"}
    assert "id" not in _DASHBOARD


def _cells(place: dict[str, int]) -> set[tuple[int, int]]:
    columns = range(place["x"], place["x"] + place["w"])
    assert max(columns) < 24
    return set(product(columns, range(place["y"], place["y"] + place["h"])))


def test_every_alert_has_severity_and_remedy() -> None:
    assert len({rule["alert"] for rule in _RULES}) == len(_RULES)
    for rule in _RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+m", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        told = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        left = set(re.split(r",\s*", re.findall(r"by \(([^)]*)\)", rule["expr"])[0]))
        assert told <= left
