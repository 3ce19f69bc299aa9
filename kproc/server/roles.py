"""The roles' names, and the row of each in the metrics slab."""

from __future__ import annotations

from typing import Final

from kproc.metrics.slab import ROWS_MAX
from kproc.transport.agent import AgentId

ACCEPTOR: Final = "acceptor"
PROCESSOR: Final = "processor"
HANDLER: Final = "handler"
CONTROLLER: Final = AgentId("controller", 0)
CLEANER: Final = AgentId("cleaner", 0)

# Fixed places, so that a role finds its row again after a restart and after any change of the counts.
_FIRST_ROW: Final = {"controller": 0, "cleaner": 1, ACCEPTOR: 16, PROCESSOR: 128, HANDLER: 576}
ROLE_COUNT_MAX: Final = 448
assert _FIRST_ROW[HANDLER] + ROLE_COUNT_MAX <= ROWS_MAX


def processor_id(index: int) -> AgentId:
    return AgentId(PROCESSOR, index)


def handler_id(index: int) -> AgentId:
    return AgentId(HANDLER, index)


def acceptor_id(index: int) -> AgentId:
    return AgentId(ACCEPTOR, index)


def slab_row(agent: AgentId) -> int:
    """The agent's row in the metrics slab."""
    return _FIRST_ROW[agent.role] + agent.index
