"""A log without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.logs import LogRig


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0")
