"""The exit codes. All commands use the same number for the same kind of result.

Scripts depend on them. New codes may be added, but existing ones never change.
"""

from __future__ import annotations

from enum import IntEnum

from hopback import errors


class Exit(IntEnum):
    OK = 0
    """Success."""
    FAILED = 1
    """An error that has no other code."""
    USAGE = 2
    """The command line is invalid. Click and getopt use the same code."""
    # Scripts depend on these codes. A new code gets the next free number.
    PARTIAL = 3
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    CONFLICT = 6
    UNREACHABLE = 7
    CANCELLED = 8
    FOUND = 10
    """A plan or a check has found something, and `--detailed-exit-code` is given."""
    INTERRUPTED = 130
    """The command was interrupted by Ctrl-C. Shells use the same code, which is 128 plus the number
    of SIGINT.
    """


class CommandFailed(errors.HopbackError):
    """The command has failed. `do` is the remedy and `code` is the exit code."""

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
    errors.QueueBusy: Exit.CONFLICT,
    errors.JobConflict: Exit.CONFLICT,
    errors.LeaseLost: Exit.CONFLICT,
}


def exit_of(error: errors.HopbackError) -> Exit:
    """Return the exit code for an error. If its class has none, the code of the nearest base class
    is used.
    """
    if isinstance(error, CommandFailed):
        return error.code
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return Exit.FAILED
