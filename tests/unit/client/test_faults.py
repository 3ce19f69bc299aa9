"""Faults without a broker: the documentation of its methods."""

from __future__ import annotations

import inspect

from kproc.client.async_faults import AsyncFaults
from kproc.client.faults import Faults, Match, Occasions


def test_docstrings_of_fault_methods_name_the_conditions() -> None:
    """help() shows `**match` with the name of its type alone."""
    documented = set()
    for name, method in inspect.getmembers(Faults, inspect.isfunction):
        taken = inspect.signature(method).parameters
        for argument, conditions in (("match", Match), ("occasions", Occasions)):
            if argument in taken and not name.startswith("_"):
                for text in (method.__doc__, getattr(AsyncFaults, name).__doc__):
                    assert f"must hold: {', '.join(conditions.__annotations__)}." in text, name
                documented.add(name)
    assert {"fail", "drop_answer", "fail_write"} < documented
