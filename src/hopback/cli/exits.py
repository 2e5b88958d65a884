"""Exit codes: one number per kind of ending, the same for every command.

They are a contract with scripts: additive, never renumbered.
"""

from __future__ import annotations

from enum import IntEnum

from hopback import errors


class Exit(IntEnum):
    """How the command ended."""

    OK = 0
    """Everything that was asked for is done."""
    FAILED = 1
    """Anything that has no number of its own."""
    USAGE = 2
    """The command line is wrong; the number that click and getopt give it."""
    # Scripts depend on the numbers from here on; a new ending gets the next free one.
    PARTIAL = 3
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    CONFLICT = 6
    UNREACHABLE = 7
    CANCELLED = 8
    FOUND = 10
    """`--detailed-exit-code`: a plan or check found something."""
    INTERRUPTED = 130
    """By Ctrl-C: 128 and the number of SIGINT, as shells have it."""


class CommandFailed(errors.HopbackError):
    """The command cannot go on; it says why, what to do and which code it leaves with."""

    def __init__(self, message: str, *, do: str, code: Exit = Exit.FAILED) -> None:
        self.do = do
        self.code = code
        super().__init__(message)


_CODES: dict[type[BaseException], Exit] = {
    errors.AccessRefused: Exit.NOT_ALLOWED,
    errors.ManagementRefused: Exit.NOT_ALLOWED,
    errors.UnsafeOperation: Exit.NOT_ALLOWED,
    errors.ManagementNotFound: Exit.NOT_FOUND,
    errors.NotFound: Exit.NOT_FOUND,
    errors.PreconditionFailed: Exit.CONFLICT,
    errors.ResourceLocked: Exit.CONFLICT,
    errors.TopologyConflict: Exit.CONFLICT,
    errors.ConnectionFailed: Exit.UNREACHABLE,
    errors.ConnectionLost: Exit.UNREACHABLE,
    errors.ServerUnavailable: Exit.UNREACHABLE,
    errors.StoreDamaged: Exit.FAILED,
    errors.StoreTooNew: Exit.CONFLICT,
    errors.StoreUnavailable: Exit.UNREACHABLE,
    errors.BadFilter: Exit.USAGE,
    errors.BadRequest: Exit.USAGE,
    errors.NoSuch: Exit.NOT_FOUND,
    errors.NotAllowed: Exit.NOT_ALLOWED,
    errors.CountMismatch: Exit.CONFLICT,
    errors.JobConflict: Exit.CONFLICT,
    errors.LeaseLost: Exit.CONFLICT,
}


def exit_of(error: errors.HopbackError) -> Exit:
    """The code for an error: its own, that of its class, or of the nearest class above it."""
    if isinstance(error, CommandFailed):
        return error.code
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return Exit.FAILED
