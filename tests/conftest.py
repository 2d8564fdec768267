"""Puts this directory on the import path, for `support`; the fixtures are the package's own plugin's."""

from __future__ import annotations

import signal
import threading


def pytest_configure() -> None:
    """Ignore no signal, though nohup or a background shell had us do so: our processes inherit that."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
