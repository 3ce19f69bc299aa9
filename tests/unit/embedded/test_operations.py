"""Operations of the control API: their table in the guide, and conditions that are kept equal to those of Python."""

from __future__ import annotations

from kproc.embedded import operations
from kproc.embedded.control_operation import operations_table
from kproc.embedded.requests import RequestMatch
from tests.support.broker import ROOT


def test_guide_has_the_table_of_all_operations() -> None:
    table = "\n".join(operations_table())
    assert f"\n\n{table}\n\n" in (ROOT / "kproc/TESTING.md").read_text(), table


def test_conditions_on_requests_are_those_of_the_python_api() -> None:
    conditions = operations.RequestConditions.__struct_fields__
    assert list(conditions) == list(RequestMatch.__annotations__)
    assert operations.RequestConditions(topic="t", version=3).as_match() == {"topic": "t", "version": 3}
