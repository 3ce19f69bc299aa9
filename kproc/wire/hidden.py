"""Keeps an optional dependency of a library from being imported with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Inside, `import name` fails as if it were not installed; one that is loaded already stays usable."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # The import system's own way to say "not there".
    try:
        yield
    finally:
        del sys.modules[name]
