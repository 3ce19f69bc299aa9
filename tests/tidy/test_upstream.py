"""Every test that UPSTREAM.md names exists."""

from __future__ import annotations

import re

from tests.tidy.sources import ROOT, functions


def test_named_tests_exist() -> None:
    text = (ROOT / "tests" / "UPSTREAM.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    known = {
        name.rpartition(".")[2] for path in (ROOT / "tests").rglob("*.py") for name, _ in functions(path)
    }
    files = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert named
    assert named - known == set()
    assert [each for each in files if not (ROOT / each).is_file()] == []
