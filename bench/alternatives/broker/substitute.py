"""substituted: lets a module of kproc build other classes than its own.

kproc has no hooks for its alternatives, which would cost its reader attention and its hot paths time. An alternative
instead replaces the classes that it needs to differ, in the modules that build them, and uses everything else as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def substituted(module: ModuleType, **others: object) -> Iterator[None]:
    """Replace names of `module` until the end of the block. Raises AttributeError for a name that it does not have."""
    own = {name: getattr(module, name) for name in others}
    vars(module).update(others)
    try:
        yield
    finally:
        vars(module).update(own)
