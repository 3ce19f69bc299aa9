"""Logging of the roles: one `key=value` line each on stderr, with the role's name in front."""

from __future__ import annotations

import logging
import sys
from typing import Final

_FORMAT: Final = "%(asctime)s level=%(levelname)s role={role} %(name)s: %(message)s"


def configure(level: int) -> None:
    """Once per broker process, before anything is forked."""
    logging.basicConfig(level=level, stream=sys.stderr, format=_FORMAT.format(role="supervisor"), force=True)


def set_role(name: str) -> None:
    """Name the role of this process in every line from now on."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging.Formatter(_FORMAT.format(role=name)))
