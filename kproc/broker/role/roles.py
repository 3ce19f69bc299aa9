"""The roles' names, and the row of each in the metrics slab."""

from __future__ import annotations

from typing import Final

from kproc.broker.config.cpus import HANDLERS_MAX, PROCESSORS_MAX
from kproc.broker.config.listeners import LISTENERS_MAX
from kproc.broker.metrics.slab import ROWS_MAX
from kproc.broker.transport.agent import AgentId

ACCEPTOR: Final = "acceptor"
PROCESSOR: Final = "processor"
HANDLER: Final = "handler"
CONTROLLER: Final = AgentId("controller", 0)
CLEANER: Final = AgentId("cleaner", 0)

# The first row of each role in the slab. Fixed, so that a role finds its row again after a restart and after a change
# of the number of roles.
_FIRST_ROW: Final = {"controller": 0, "cleaner": 1, ACCEPTOR: 16, PROCESSOR: 128, HANDLER: 576}
ROLE_COUNT_MAX: Final = 448
assert _FIRST_ROW[HANDLER] + ROLE_COUNT_MAX <= ROWS_MAX
ACCEPTOR_COUNT_MAX: Final = _FIRST_ROW[PROCESSOR] - _FIRST_ROW[ACCEPTOR]
_COUNTS_MAX: Final = {ACCEPTOR: ACCEPTOR_COUNT_MAX, PROCESSOR: ROLE_COUNT_MAX, HANDLER: ROLE_COUNT_MAX}

# The control listener's own Acceptor and Processor have the last rows, which no count of roles ever reaches.
assert LISTENERS_MAX < ACCEPTOR_COUNT_MAX
assert PROCESSORS_MAX < ROLE_COUNT_MAX
assert HANDLERS_MAX <= ROLE_COUNT_MAX
CONTROL_ACCEPTOR: Final = AgentId(ACCEPTOR, ACCEPTOR_COUNT_MAX - 1)
CONTROL_PROCESSOR: Final = AgentId(PROCESSOR, ROLE_COUNT_MAX - 1)
_CONTROL_PLANE: Final = frozenset((CONTROL_ACCEPTOR, CONTROL_PROCESSOR))

# Roles in the order in which they start and get their links: a Processor must have its Handlers before the first
# Acceptor sends it a client.
ROLE_ORDER: Final = (CONTROLLER.role, CLEANER.role, HANDLER, PROCESSOR, ACCEPTOR)


def processor_id(index: int) -> AgentId:
    return AgentId(PROCESSOR, index)


def handler_id(index: int) -> AgentId:
    return AgentId(HANDLER, index)


def acceptor_id(index: int) -> AgentId:
    return AgentId(ACCEPTOR, index)


def slab_row(agent: AgentId) -> int:
    """Return the agent's row in the metrics slab.

    The row also holds the agent's sleeping word, so two agents must not share a row.
    """
    assert agent.index < _COUNTS_MAX.get(agent.role, 1), agent
    return _FIRST_ROW[agent.role] + agent.index


def is_control(agent: AgentId) -> bool:
    """Return True if the agent serves only the control listener."""
    return agent in _CONTROL_PLANE


def start_order(agent: AgentId) -> tuple[int, int]:
    """Return a sort key: agents in the order in which they must be started."""
    return ROLE_ORDER.index(agent.role), agent.index


def has_handoff(one: AgentId, other: AgentId) -> bool:
    """Return True if one of the two passes sockets to the other.

    One is an Acceptor and the other a Processor, and either both or neither serve the control listener.
    """
    return {one.role, other.role} == {ACCEPTOR, PROCESSOR} and is_control(one) == is_control(other)
