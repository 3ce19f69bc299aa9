"""The fixtures of the Handlers' tests: `start`, and no log record that is kept."""

from tests.unit.handler.conftest import forget_log, start

__all__ = ["forget_log", "start"]
