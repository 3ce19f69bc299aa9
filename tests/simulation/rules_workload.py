"""A client that creates and deletes access rules: after the answer every Handler decides by them."""

from __future__ import annotations

from typing import Any, Final

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.simulation.client import Fields, Gone, Late, Life
from tests.simulation.workloads import Worker
from tests.support.acls import acl_fields

_GROUP, _LITERAL, _DESCRIBE, _DENY = 3, 3, 8, 2
_LOOKS: Final = 2
_LAST_TRIES: Final = 100
_BETWEEN_TRIES_MS: Final = 100  # Nobody serves while the only Handler waits for its restart.


def _about(name: str) -> Fields:
    """The filter for the rule about a group; "" for all."""
    return {
        "resource_type_filter": _GROUP,
        "resource_name_filter": name or None,
        "pattern_type_filter": _LITERAL,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


class Ruler(Worker):
    """Forbids everybody to describe groups, and takes that back. Each group has one rule at most, and once: whether a
    change whose answer was lost is made, and when, nobody knows."""

    def __init__(self, *arguments: Any) -> None:
        self.number = 0
        self.denied: set[str] = set()
        self.free: set[str] = set()
        super().__init__(*arguments)

    def work(self) -> Life:
        if self.rng.random() < 0.6 or not self.denied:
            yield from self.deny()
        else:
            yield from self.take_back(self.rng.choice(sorted(self.denied)))
        for _ in range(_LOOKS):
            yield from self.look()
        yield from self.pause(self.rng.choice((0, 5, 20)))

    def finish(self) -> Life:
        for _ in range(_LAST_TRIES):
            try:
                yield from self.look()
            except (Gone, Late) as problem:  # Of a connection of before the last start.
                self.world.tell(self.name, "lost its connection:", problem)
                self.disconnect()
                yield from self.pause(_BETWEEN_TRIES_MS)
            else:
                return
        self.world.violate(f"{self.name}: nobody tells it the rules")

    def deny(self) -> Life:
        self.number += 1
        name = f"{self.name}-{self.number}"
        rule = acl_fields(_GROUP, name, _DESCRIBE, principal="User:ANONYMOUS", allows=False)
        answer = yield from self.call(ApiKey.CREATE_ACLS, 3, {"creations": [rule]})
        code = answer["results"][0]["error_code"]
        self.check_code("CreateAcls", code)
        if not code:
            self.denied.add(name)

    def take_back(self, name: str) -> Life:
        self.denied.remove(name)
        answer = yield from self.call(ApiKey.DELETE_ACLS, 3, {"filters": [_about(name)]})
        (result,) = answer["filter_results"]
        self.check_code("DeleteAcls", result["error_code"])
        if not result["error_code"]:
            if len(result["matching_acls"]) != 1:
                self.world.violate(f"{self.name}: the rule about {name} was not there to be deleted")
            self.free.add(name)

    def look(self) -> Life:
        """By some Handler: what the rules are, and what it decides by them, now and when it decided it before."""
        if self.rng.random() < 0.5:
            self.disconnect()
        listed = yield from self.call(ApiKey.DESCRIBE_ACLS, 3, _about(""))
        self.check_code("DescribeAcls", listed["error_code"])
        if listed["error_code"]:
            return
        there = {resource["resource_name"] for resource in listed["resources"]}
        if self.denied - there or self.free & there:
            self.world.violate(
                f"{self.name}: rules {sorted(self.denied - there)} are missing, {sorted(self.free & there)} are there"
            )
        names = sorted({*list(self.denied)[-3:], *list(self.free)[-3:]})
        fields = {"groups": names, "include_authorized_operations": False}
        described = yield from self.call(ApiKey.DESCRIBE_GROUPS, 5, fields)
        self.history.counts["rights"] += len(names)
        for row in described["groups"]:
            is_denied = row["error_code"] == ErrorCode.GROUP_AUTHORIZATION_FAILED
            if is_denied != (row["group_id"] in self.denied):
                words = "denied" if is_denied else "not denied"
                self.world.violate(f"{self.name}: to describe {row['group_id']} was {words}")
