"""Loads text codecs that Python would import at their first use, in a role that serves by then.

An import opens files, so it fails when no descriptor is free; and a request that needs it would fail with it.
"""

from __future__ import annotations

import codecs
from typing import Final

_CODECS: Final = ("ascii", "idna", "latin-1", "unicode_escape", "utf-16-be")


def load_text_codecs() -> None:
    """Import the codecs. Call it before the roles are forked."""
    for name in _CODECS:
        codecs.lookup(name)
