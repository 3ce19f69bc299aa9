"""The fenced blocks of the documents: which test runs them, and why some are not run.

Every block of code of every document is run by the tests of RUN_BY, or its first line is in NOT_RUN with the reason.
tests/tidy/test_documents.py checks that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent.parent
# Other languages, and blocks without one, are pictures and output.
CODE: Final = frozenset(("sh", "console", "python", "toml", "properties", "java", "go", "javascript"))
LANGUAGES: Final = CODE | {"text"}
_DIRECTORIES: Final = ("", "bench", "examples", "kproc", "scripts", "tests")
_FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

RUN_BY: Final[dict[str, tuple[str, ...]]] = {
    "README.md": ("cli/test_documents", "clients/test_quickstart", "spark/test_readme"),
    "kproc/COMMANDS.md": ("cli/test_documents",),
    "kproc/DAYTWO.md": ("cli/test_documents",),
    "kproc/MOVING.md": ("faults/test_moving",),
    "kproc/OPERATING.md": ("cli/test_documents", "cli/test_who_changed_what"),
    "kproc/SECURITY.md": ("cli/test_documents",),
    "kproc/SPARK.md": ("spark/test_spark_guide",),
    "kproc/TESTING.md": ("clients/test_testing_guide", "clients/test_control_clients"),
    "tests/README.md": ("cli/test_documents",),
}

_SUITE: Final = "it runs the test suite"
_MEASURES: Final = "it measures for minutes or hours; tests/bench runs the same programs for a moment"
# The document and the beginning of the block's first line.
NOT_RUN: Final[dict[tuple[str, str], str]] = {
    (
        "README.md",
        "git clone ",
    ): "it needs the repository's address; .ci/run installs into a fresh environment",
    ("README.md", "scripts/check "): _SUITE,
    ("CONTRIBUTING.md", "git clone "): _SUITE,
    ("CONTRIBUTING.md", "python -m tests.simulation "): "200 seeds take minutes; .ci/run has 30",
    ("CONTRIBUTING.md", "git worktree add "): _MEASURES,
    ("bench/README.md", "python -m tests.support.kafka_jars "): _MEASURES,
    ("bench/README.md", "kproc bench sweep "): _MEASURES,
    ("bench/README.md", "kproc bench simulate "): _MEASURES,
    ("examples/clicks/README.md", "pip install "): "5 million events take minutes; tests/examples has fewer",
    ("kproc/DAYTWO.md", "lvcreate "): "it needs root and a volume of LVM",
    ("kproc/DAYTWO.md", "/opt/kproc/bin/pip "): "it installs another version; .ci/run installs this one",
    ("tests/README.md", "pytest "): _SUITE,
}


class Block(NamedTuple):
    """A fenced block: where its code begins, its language and its code without the indent of a list."""

    document: str
    line: int
    language: str
    code: str

    def reasons(self) -> list[tuple[str, str]]:
        """Return the keys of NOT_RUN that are about this block."""
        return [key for key in NOT_RUN if self.document == key[0] and self.code.startswith(key[1])]

    @property
    def is_run(self) -> bool:
        return not self.reasons()


@cache
def documents() -> dict[str, str]:
    """Return the text of every document of the repository by its path."""
    found: dict[str, str] = {}
    for name in _DIRECTORIES:
        paths = (ROOT / name).rglob("*.md") if name else ROOT.glob("*.md")
        found |= {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return dict(sorted(found.items()))


def blocks(document: str, *languages: str) -> Iterator[Block]:
    """Yield the blocks of a document in its order: all of them, or those in some languages."""
    text = documents()[document]
    for found in _FENCE.finditer(text):
        indent, language, code = found.groups()
        if not languages or language in languages:
            line = text.count("\n", 0, found.start(3)) + 1
            yield Block(document, line, language, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE))


def code_to_run(document: str, *languages: str) -> list[str]:
    """Return the code of the blocks in these languages that a test must run."""
    return [block.code for block in blocks(document, *languages) if block.is_run]
