"""Members of a group that the broker assigns (KIP-848, KIP-1071), mostly with the right names and epochs.

Three members are in one group, and the last one is in a group by itself. Each has its own connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.differential.scene import Scene
from tests.differential.symbols import Ref

JOINS, LEAVES, LEAVES_FOR_A_TIME = 0, -1, -2
_ALONE = 3  # The member that is in a group by itself.


class Member:
    """A member in the request's fields. With a `number` all of them are right."""

    def __init__(self, scene: Scene, letter: str, group: str, number: int | None) -> None:
        self.number = scene.pick((0, 0, 1, 1, 2, 3)) if number is None else number
        self.usually = scene.usually if number is None else _first
        other = f"{letter}{(self.number + 1) % 3}"
        group_id = f"{group}{1 if self.number == _ALONE else 0}"
        self.group_id = self.usually([group_id], "", "~none", f"{group}2", " ")
        self.member_id = self.usually([f"{letter}{self.number}"], "", "nope", other, " ")
        self.instance_id = self.usually([scene.instances.get(self.number)], None, "i0", "ix", "")

    def epoch(self) -> Any:
        known = Ref("epoch", self.number, 0)
        return self.usually([known], known._replace(add=1), known._replace(add=-1), -3, 0, 7)


def _first(usual: list[Any], *_odd: Any) -> Any:
    return usual[0]


class Members:
    """The members of one theme. send: adds the heartbeat of a member; epoch None: joins, or goes on as before."""

    def __init__(self, letter: str, group: str, send: Callable[[Scene, Member, int | None], None]) -> None:
        self._letter = letter
        self._group = group
        self._send = send

    def member(self, scene: Scene, number: int | None = None) -> Member:
        return Member(scene, self._letter, self._group, number)

    def heartbeat(self, scene: Scene, number: int | None = None) -> None:
        """A heartbeat of a member that joined, or the first one of a member that the group does not have."""
        self._send(scene, self.member(scene, number), None)

    def join(self, scene: Scene) -> None:
        self._send(scene, self.member(scene), JOINS)

    def leave(self, scene: Scene) -> None:
        member = self.member(scene)
        for_a_time = member.instance_id is not None or scene.chance(0.1)
        self._send(scene, member, scene.pick((LEAVES, LEAVES_FOR_A_TIME)) if for_a_time else LEAVES)

    def cycle(self, scene: Scene) -> None:
        """Members join one after the other and send heartbeats, as clients do."""
        coming = scene.pick(([0], [0, 1], [1, 0], [0, 1, 2], [_ALONE]))
        for number in coming * 3:
            self.heartbeat(scene, number)
