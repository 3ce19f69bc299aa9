"""Functions of a specification: found beside it, refused in one line with the place in their own file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.pipeline.python_code import CodeError, call, resolve

pytest.importorskip("pyspark")


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[Path]:
    """A file of functions with a name that no other test has."""
    path = tmp_path / "steps_of_test.py"
    path.write_text(
        "LIMIT = 3\n\n\ndef twice(x):\n    return 2 * x\n\n\ndef fail(x):\n    raise ValueError('no')\n"
    )
    before = list(sys.path)
    yield path
    sys.path[:] = before
    sys.modules.pop("steps_of_test", None)


def test_a_function_is_found_by_file_and_by_module(steps: Path) -> None:
    by_file = resolve(f"{steps}:twice", steps.parent)
    assert call("steps", by_file, 21) == 42
    assert resolve("steps_of_test:twice", steps.parent) is by_file, "one module, however it is named"
    assert resolve("json:loads", steps.parent)("1") == 1


def test_exception_of_user_code_becomes_line_with_place(steps: Path) -> None:
    with pytest.raises(CodeError) as caught:
        call("steps:fail", resolve(f"{steps}:fail", steps.parent), 1)
    assert str(caught.value) == "steps:fail: ValueError: no (steps_of_test.py:9)"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("steps_of_test.py:twise", "no function twise there; there are twice, fail"),
        ("steps_of_test.py:LIMIT", "no function LIMIT there"),
        ("none.py:f", "none.py: no such file"),
        ("no_such_module_at_all:f", "no module no_such_module_at_all, neither installed nor in"),
        ("broken.py:f", "SyntaxError: "),
        ("json.py:f", "Python has another module json, from its library or loaded before; give the file another name"),
    ],
)
def test_unresolvable_reference_is_reported_in_one_line(steps: Path, reference: str, words: str) -> None:
    (steps.parent / "broken.py").write_text("def f(:\n")
    (steps.parent / "json.py").write_text("")
    where = f"{steps.parent}/{reference}" if ".py:" in reference else reference
    with pytest.raises(CodeError) as caught:
        resolve(where, steps.parent)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
