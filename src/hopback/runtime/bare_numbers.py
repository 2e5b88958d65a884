"""Bare numbers for waiting times: seconds, that were milliseconds in 0.1.0."""

from __future__ import annotations

import sys
import warnings

from hopback.topology.durations import format_duration, parse_wait_ms

__all__ = ["warn_of_milliseconds"]


def warn_of_milliseconds(option: str, value: object) -> None:
    """Say, at the line outside Hopback that gave it, what a large bare number means today.

    In 0.1.0 it was milliseconds. Seconds below a thousand are plausible as seconds, and were hardly ever
    meant as milliseconds.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 1000:
        return
    meant = format_duration(parse_wait_ms(value / 1000))
    means = format_duration(parse_wait_ms(value))
    frame, level = sys._getframe(), 1  # noqa: SLF001 - documented, and what warnings itself uses
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__")):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"{option}: {value} means {means} since 0.2.0, where a bare number is seconds; write"
        f' "{meant}" or "{means}"',
        UserWarning,
        stacklevel=level,
    )


def _is_ours(module: object) -> bool:
    """Whether a frame belongs to the library; programs built on it, as the systems are, do not."""
    name = str(module)
    return name.partition(".")[0] == "hopback" and not name.startswith("hopback.systems.")
