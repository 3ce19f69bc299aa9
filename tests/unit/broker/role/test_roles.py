"""Each role has a row of its own in the slab."""

from __future__ import annotations

import pytest

from kproc.broker.metrics.slab import ROWS_MAX
from kproc.broker.role.roles import CLEANER, CONTROLLER, acceptor_id, handler_id, processor_id, slab_row
from kproc.broker.transport.agent import AgentId


def test_every_role_has_a_row_of_its_own() -> None:
    agents = [
        CONTROLLER,
        CLEANER,
        *(acceptor_id(index) for index in range(112)),
        *(processor_id(index) for index in range(448)),
        *(handler_id(index) for index in range(448)),
    ]
    rows = [slab_row(agent) for agent in agents]
    assert len(set(rows)) == len(rows)
    assert max(rows) < ROWS_MAX


@pytest.mark.parametrize("agent", [acceptor_id(112), processor_id(448), handler_id(448)])
def test_no_role_gets_the_row_of_another_kind(agent: AgentId) -> None:
    with pytest.raises(AssertionError):
        slab_row(agent)
