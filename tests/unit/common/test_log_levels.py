"""Levels of loggers by Kafka's names, in the process that asks."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kproc.common import log_levels
from tests.support.cases import in_one_test


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Two modules of a package that has no logger of its own, and the levels of before at the end."""
    before = logging.root.level
    for name in ("levels.one", "levels.two"):
        logging.getLogger(name)
    yield
    logging.root.setLevel(before)
    log_levels.apply({"levels": None, "levels.one": None, "levels.two": None})


def levels() -> dict[str, str]:
    return {name: level for name, level in log_levels.effective().items() if name.startswith("levels")}


def test_a_logger_without_a_level_has_that_of_the_one_above_it() -> None:
    log_levels.apply({"root": "ERROR"})
    assert levels() == {"levels": "ERROR", "levels.one": "ERROR", "levels.two": "ERROR"}
    log_levels.apply({"levels": "DEBUG", "levels.two": "FATAL"})
    assert levels() == {"levels": "DEBUG", "levels.one": "DEBUG", "levels.two": "FATAL"}
    log_levels.apply({"levels": None, "levels.two": None})
    assert set(levels().values()) == {"ERROR"}


@in_one_test("level", sorted(log_levels.NAMES))
def test_every_level_is_shown_by_the_name_that_it_was_set_by(level: str) -> None:
    log_levels.apply({"levels.one": level, "root": level})
    assert (levels()["levels.one"], log_levels.effective()["root"]) == (level, level)


def test_level_between_two_has_name_of_lower_one() -> None:
    logging.getLogger("levels.one").setLevel(logging.INFO + 5)
    assert levels()["levels.one"] == "INFO"
    logging.getLogger("levels.one").setLevel(1)
    assert levels()["levels.one"] == "TRACE"
