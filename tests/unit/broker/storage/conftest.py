"""A log without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from tests.support.logs import LogRig


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0")


@pytest.fixture
def lengths_log(tmp_path: Path) -> Iterator[Log]:
    log = LogRig(tmp_path / "t-0").open()
    yield log
    log.close(clean=False)


@pytest.fixture
def full_log(tmp_path: Path) -> Iterator[Log]:
    log = LogRig(tmp_path / "full-0", config=LogConfig(validate_records="full")).open()
    yield log
    log.close(clean=False)
