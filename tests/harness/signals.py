"""Set the signals of test processes."""

from __future__ import annotations

import signal

__all__ = ["set_signals"]

_RELIED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)


def set_signals() -> None:
    """Restore the default actions of the signals that the tests send. Child processes inherit them.

    If a shell runs a job in the background, the job ignores SIGINT, and child processes inherit
    ignored and blocked signals. SIGHUP is not changed, so that nohup works. No test sends it.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _RELIED_ON)
    for number in _RELIED_ON:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
