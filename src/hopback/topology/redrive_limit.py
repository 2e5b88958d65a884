"""How often a message may go back: apart from re-driving, for those who only name the number.

Commands state it in their help, and should not load the rules of re-driving for that.
"""

from __future__ import annotations

__all__ = ["MAX_REDRIVES"]

MAX_REDRIVES = 3
"""How often a message may be re-driven when nothing else is said; a fourth time is a loop."""
