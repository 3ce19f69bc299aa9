"""Tables with few entries: within a run, made-up names fill them as only thousands of names do elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kproc.broker.group import classic_groups
from kproc.broker.handler.handler import Handler
from kproc.broker.peers.group_call import GROUPS
from kproc.wire.header import ApiKey
from tests.simulation.client import Life
from tests.simulation.processes import Process
from tests.simulation.workloads import E, Worker
from tests.support.groups import join_fields

_BOUNDS = ("UNWRITTEN_GROUPS_MAX", "PENDING_MEMBERS_MAX")


@contextlib.contextmanager
def tables_up_to(most: int) -> Iterator[None]:
    """Bound the tables of a coordinator of groups. 0: leave the bounds as they are."""
    before = {name: getattr(classic_groups, name) for name in _BOUNDS}
    for name in _BOUNDS if most else ():
        setattr(classic_groups, name, most)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(classic_groups, name, value)


def overfull_tables(process: Process) -> dict[str, int]:
    """Return the tables of a Handler's process that have more entries than their bounds, with their sizes."""
    handler = process.role._agent
    if not isinstance(handler, Handler):
        return {}
    sizes: dict[str, int] = {}
    for each in GROUPS.of(handler._services).loaded():
        if len(each._unwritten) > classic_groups.UNWRITTEN_GROUPS_MAX:
            sizes["groups without a record"] = len(each._unwritten)
        if len(each._classic._pending) > classic_groups.PENDING_MEMBERS_MAX:
            sizes["member ids that nobody uses"] = len(each._classic._pending)
    return sizes


class Crowd(Worker):
    """Asks for member ids of groups that it makes up, and never uses them."""

    def work(self) -> Life:
        for _ in range(self.rng.choice((1, 5, 20))):
            group = f"crowd-{self.rng.getrandbits(30)}"
            yield from self.find_coordinator(group)
            if self.must_finish:
                return
            answer = yield from self.call(ApiKey.JOIN_GROUP, 9, join_fields(group))
            self.check_code("JoinGroup", answer["error_code"], E.MEMBER_ID_REQUIRED)
        yield from self.pause(self.rng.choice((0, 5, 20)))
