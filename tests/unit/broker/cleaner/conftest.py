"""A cleaner without its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cleaner_rig import CleanerRig


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., CleanerRig]]:
    with ExitStack() as stack:
        yield lambda **parts: CleanerRig(stack, tmp_path, **parts)


@pytest.fixture
def rig(start: Callable[..., CleanerRig]) -> CleanerRig:
    return start()
