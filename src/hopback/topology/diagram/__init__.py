"""Topologies and plans as Mermaid diagrams: text only, the same text for the same topology."""

from __future__ import annotations

from hopback.topology.diagram.flow import draw_flow
from hopback.topology.diagram.sequence import draw_sequence
from hopback.topology.diagram.states import draw_states

__all__ = ["draw_flow", "draw_sequence", "draw_states"]
