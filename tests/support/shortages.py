"""Shortages of the host that a test cannot cause without harm to others."""

from __future__ import annotations

from typing import NoReturn


def no_thread(_thread: object) -> NoReturn:
    """Fail as threading.Thread.start does when the control group or the user has as many threads as allowed."""
    raise RuntimeError("can't start new thread")
