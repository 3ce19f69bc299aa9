"""The topology of a broker: which roles there are, which pairs of them are linked, and the order in which they stop.

All ways to run the roles share this topology: processes (children.py, regions.py, shutdown.py), threads, one thread for
all (inprocess_roles.py), and the simulation, which runs the code of the processes. Roles start in the order of
`role/roles.py: ROLE_ORDER`. Acceptors have no links. They pass sockets to Processors over handoff sockets
(`role/roles.py: has_handoff`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kproc.broker.role.roles import (
    ACCEPTOR,
    CLEANER,
    CONTROL_ACCEPTOR,
    CONTROL_PROCESSOR,
    CONTROLLER,
    HANDLER,
    PROCESSOR,
    handler_id,
    is_control,
    processor_id,
    start_order,
)
from kproc.broker.transport.agent import AgentId

# Sizes of the rings of a link in bytes, for each direction. In _LINKS, None means the setting kproc.ring.bytes.
_INTERNAL_BYTES: Final = 256 * 1024
_CLEANERS_BYTES: Final = 64 * 1024
_LINKS: Final[dict[tuple[str, str], int | None]] = {
    (PROCESSOR, HANDLER): None,
    (HANDLER, HANDLER): _INTERNAL_BYTES,
    (CONTROLLER.role, HANDLER): _INTERNAL_BYTES,
    (CONTROLLER.role, CLEANER.role): _CLEANERS_BYTES,
    (PROCESSOR, CONTROLLER.role): _INTERNAL_BYTES,  # Only the Processor of the control listener.
    (CLEANER.role, HANDLER): _CLEANERS_BYTES,
}

# Roles that write files of the data directory.
WRITERS: Final = (HANDLER, CONTROLLER.role, CLEANER.role)
# At a stop these roles drain first, all within one deadline. Acceptors and Processors get the message first, because
# new requests come through them.
DRAIN_WAVES: Final = ((ACCEPTOR, PROCESSOR), (HANDLER,))
# After the drain the roles close in this order. The cleaner is last, because it writes the checkpoints, and the marker
# of a clean stop if all other writers have closed cleanly.
CLOSE_WAVES: Final = (*DRAIN_WAVES, (CONTROLLER.role,), (CLEANER.role,))


class LinkPlan(NamedTuple):
    """A link between two roles, with the size of its rings.

    The region has two ends: role `first` attaches the first one, `second` the other.
    """

    first: AgentId
    second: AgentId
    capacity: int  # Bytes of each direction.


def find_link(one: AgentId, other: AgentId, ring_bytes: int) -> LinkPlan | None:
    """Return the link between two roles, or None if they have none. `ring_bytes` is kproc.ring.bytes."""
    for first, second in ((one, other), (other, one)):
        if (first.role, second.role) in _LINKS and not _is_of_other_plane(first, second):
            return LinkPlan(first, second, _LINKS[first.role, second.role] or ring_bytes)
    return None


def _is_of_other_plane(first: AgentId, second: AgentId) -> bool:
    """Return True if `first` is a Processor and `second` a peer that it must not be linked with.

    The control listener's Processor is linked with the controller only. The other Processors are not linked with the
    controller.
    """
    return first.role == PROCESSOR and is_control(first) != (second == CONTROLLER)


def initial_roles(
    pools: Mapping[str, int], handler_count: int, acceptors: Iterable[AgentId]
) -> list[tuple[AgentId, str]]:
    """Return the roles of a broker's start with their pool, in the order in which they start.

    The list lacks the controller, which starts first, because the counts may depend on settings that only it reads.

    pools: numbers of Processors by pool. A pool is the listener (in lower case) that a set of Processors belongs to, or
    "" for the common set.
    """
    names = [pool for pool, count in pools.items() for _ in range(count)]
    acceptors = list(acceptors)
    roles = [
        (CLEANER, ""),
        *((handler_id(index), "") for index in range(handler_count)),
        *((processor_id(index), pool) for index, pool in enumerate(names)),
        *((acceptor, "") for acceptor in acceptors),
    ]
    if CONTROL_ACCEPTOR in acceptors:
        roles.append((CONTROL_PROCESSOR, ""))
    return sorted(roles, key=lambda role: start_order(role[0]))
