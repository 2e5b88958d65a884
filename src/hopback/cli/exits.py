"""Exit codes: one number per kind of result, the same for every command.

Scripts depend on them. New codes are added, existing codes never change.
"""

from __future__ import annotations

from enum import IntEnum

from hopback import errors


class Exit(IntEnum):
    """The result of a command."""

    OK = 0
    """Success."""
    FAILED = 1
    """An error without a specific code."""
    USAGE = 2
    """The command line is invalid. click and getopt use the same number."""
    # Scripts depend on the following numbers. A new result gets the next free one.
    PARTIAL = 3
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    CONFLICT = 6
    UNREACHABLE = 7
    CANCELLED = 8
    FOUND = 10
    """`--detailed-exit-code`: a plan or check found something."""
    INTERRUPTED = 130
    """Ctrl-C: 128 plus the number of SIGINT, as in shells."""


class CommandFailed(errors.HopbackError):
    """The command failed. Contains the reason, the remedy (`do`) and the exit code."""

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
    """Return the code of an error: its own, or that of the nearest class in its hierarchy."""
    if isinstance(error, CommandFailed):
        return error.code
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return Exit.FAILED
