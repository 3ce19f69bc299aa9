"""The lines of the change log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kproc.broker.request.change_log import logger


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The lines of the change log so far, as a list that grows."""
    caplog.set_level(logging.INFO, logger=logger.name)
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    collector = Collector()
    logger.addHandler(collector)
    yield found
    logger.removeHandler(collector)
