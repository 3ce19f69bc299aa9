"""Descriptors and mappings of every process of a broker, to compare before and after."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.broker import BrokerUnderTest
from tests.support.proc import child_pids, descriptor_kinds


def mapped_files(pid: int) -> Counter[str]:
    """Named mappings by name, regions of shared memory among them; the rest is the allocator's affair."""
    lines = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return Counter(columns[5] for columns in lines if len(columns) == 6 and not columns[5].startswith("["))


def all_pids(broker: BrokerUnderTest) -> list[int]:
    assert broker.pid is not None
    return sorted([broker.pid, *child_pids(broker.pid)])


class Holdings:
    """Open descriptors and mapped files of each process of a broker."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        self.pids = all_pids(broker)
        self.data = str(broker.data)
        self.descriptors = {pid: descriptor_kinds(pid) for pid in self.pids}
        self.mappings = {pid: mapped_files(pid) for pid in self.pids}

    def grown_since(self, before: Holdings) -> list[str]:
        problems = [] if self.pids == before.pids else [f"pids were {before.pids}, are {self.pids}"]
        for pid in set(self.pids) & set(before.pids):
            for name, count in (self.descriptors[pid] - before.descriptors[pid]).items():
                # A segment may be opened by a frame that was valid after all: once to append, once to send from.
                if not name.startswith(self.data) or self.descriptors[pid][name] > 2:
                    problems.append(f"{pid} has {count} more of {name}")
            mapped = self.mappings[pid] - before.mappings[pid]
            problems += [f"{pid} has {count} more mappings of {name}" for name, count in mapped.items()]
        return problems
