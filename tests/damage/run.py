"""The sweep: cases from a seed, each over a fresh copy of one of two data directories."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from kproc.broker.storage.format import parse_partition_directory_name
from tests.damage.harm import HARMS, damage
from tests.damage.judge import Broken, Judge
from tests.damage.scene import Partition, Promises, build, copy_of
from tests.damage.warm_broker import NotStarted, WarmBroker
from tests.support.raw import Closed, RawClient

_METADATA: Final = "__cluster_metadata-0"
_IDENTITY: Final = "meta.properties"
_LOCK: Final = ".lock"  # Its content means nothing.


class Harm(NamedTuple):
    """Damage to one file."""

    file: str
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.file}:{self.kind}:{self.seed}"


class Case(NamedTuple):
    """A data directory, by how its broker ended, and the damage to it."""

    ended: str
    harms: tuple[Harm, ...]

    def __str__(self) -> str:
        return f"--case {self.ended} {' '.join(map(str, self.harms))}"


class Sweep:
    """The two data directories, and the cases over them."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._promises: dict[str, Promises] = {}
        for ended in ("clean", "killed"):
            self._promises[ended] = build(scratch / ended, is_clean=ended == "clean")
        self.counts: Counter[str] = Counter()

    def files(self, ended: str) -> list[str]:
        """The files that can be damaged, sorted."""
        root = self._scratch / ended
        return sorted(
            str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != _LOCK
        )

    def draw(self, rng: random.Random) -> Case:
        """A case: half of them damage one file, the others two. Each type of file is as likely."""
        ended = rng.choice(("clean", "killed"))
        by_type: dict[str, list[str]] = {}
        for file in self.files(ended):
            by_type.setdefault(_type_of(file), []).append(file)
        harms: list[Harm] = []
        for _ in range(rng.choice((1, 2))):
            file = rng.choice(by_type[rng.choice(sorted(by_type))])
            if all(each.file != file for each in harms):
                harms.append(Harm(file, rng.choice(sorted(HARMS)), rng.getrandbits(30)))
        return Case(ended, tuple(harms))

    def run(self, case: Case) -> str | None:
        """Run one case; return what is wrong, or None."""
        data = self._scratch / "case"
        shutil.rmtree(data, ignore_errors=True)
        copy_of(self._scratch / case.ended, data)
        words = [f"{each.file}: {damage(data / each.file, each.kind, each.seed)}" for each in case.harms]
        damaged = {part for each in case.harms if (part := _partition_of(each.file)) is not None}
        for each in case.harms:
            self.counts[f"{_type_of(each.file)} {each.kind}"] += 1
        may_refuse = any(each.file == _IDENTITY or each.file.startswith(_METADATA) for each in case.harms)
        broker = WarmBroker(data)
        problem: str | None = None
        try:
            with broker, RawClient(broker.bootstrap) as client:
                judge = Judge(
                    client,
                    self._promises[case.ended],
                    damaged,
                    lambda name: bool(list(data.glob(f"{name}.*-stray"))),
                )
                judge.judge()
                self.counts["refused" if judge.refused else "repaired"] += 1
        except NotStarted as end:
            lines = str(end).strip().splitlines()
            if not may_refuse or len(lines) != 1:
                problem = f"the start fails: {lines[-3:]}"
            self.counts["not started"] += 1
        except (Broken, Closed, TimeoutError) as broken:
            problem = repr(broken)
        if problem is None and "Traceback" in broker.printed():
            problem = f"a traceback: {broker.printed().strip().splitlines()[-1]}"
        return None if problem is None else f"{'; '.join(words)}: {problem}"


def sweep(
    scratch: Path, *, seed: int, cases: int = 1 << 60, seconds: float = 1e9, tell: Callable[[str], None], failures: int
) -> tuple[int, list[str], Counter[str]]:
    """Run cases until one of the bounds is met; return how many, what failed, and counts."""
    rng = random.Random(seed)
    found: list[str] = []
    deadline = time.monotonic() + seconds
    subject = Sweep(scratch)
    done = 0
    while done < cases and time.monotonic() < deadline and len(found) < failures:
        case = subject.draw(rng)
        problem = subject.run(case)
        done += 1
        if problem is not None:
            found.append(f"{problem}\n  again: python -m tests.damage {case}")
            tell(found[-1])
        if done % 100 == 0:
            tell(f"{done} cases, {len(found)} failed")
    return done, found, subject.counts


def _type_of(file: str) -> str:
    """Name the type of a file: its suffix, or its name; metadata and internal topics apart."""
    path = Path(file)
    kind = path.suffix if path.name[0].isdigit() else path.name
    if file.startswith(_METADATA):
        return f"metadata {kind}"
    return f"internal {kind}" if file.startswith("__") else kind


def _partition_of(file: str) -> Partition | None:
    parts = Path(file).parts
    return parse_partition_directory_name(parts[0]) if len(parts) > 1 else None
