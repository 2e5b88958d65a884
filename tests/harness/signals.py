"""The signals that processes of the tests start with."""

from __future__ import annotations

import signal

__all__ = ["set_signals"]

_RELIED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)


def set_signals() -> None:
    """Let the signals that tests send take effect here and in every process started from here.

    A shell that puts a run into the background lets it ignore SIGINT, and what a process ignores or
    blocks, all processes that it starts ignore or block. No test sends SIGHUP: nohup keeps its effect.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _RELIED_ON)
    for number in _RELIED_ON:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
