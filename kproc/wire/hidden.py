"""Keeps an optional dependency of a library from being imported with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Make `import name` fail inside the context, as if it were not installed. A loaded module stays usable."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # The import system's own way to say "not there".
    try:
        yield
    finally:
        del sys.modules[name]
