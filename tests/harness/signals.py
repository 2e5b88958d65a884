"""The signals that processes of the tests start with."""

from __future__ import annotations

import signal

__all__ = ["set_signals"]

_RELIED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)


def set_signals() -> None:
    """Restore the default effect of the signals that tests send, here and in all child processes.

    A shell that runs a job in the background lets it ignore SIGINT, and child processes inherit
    ignored and blocked signals. No test sends SIGHUP, so nohup keeps its effect.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _RELIED_ON)
    for number in _RELIED_ON:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
