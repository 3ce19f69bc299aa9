"""Cases of one test: for those by the hundred that differ in a value alone, and whose body takes microseconds."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

VALUE_CHARACTERS = 100
_Test = Callable[..., None]


def in_one_test(
    names: str | Sequence[str], cases: Sequence[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but one test that takes all cases: pytest needs 2 ms of CPU for a test of its own.

    The first case that fails ends the test, which names it. What the test asks of fixtures is the same for all cases.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    assert cases, "a test without a case"

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def take_each(**fixtures: Any) -> None:
            for case in cases:
                values = dict(zip(arguments, case if len(arguments) > 1 else (case,), strict=True))
                try:
                    test(**fixtures, **values)
                except BaseException as problem:
                    shown = ", ".join(
                        f"{name}={value!r:.{VALUE_CHARACTERS}}" for name, value in values.items()
                    )
                    problem.add_note(f"in the case {shown}")
                    raise

        signature = inspect.signature(test)
        kept = [each for name, each in signature.parameters.items() if name not in arguments]
        assert len(kept) == len(signature.parameters) - len(arguments), (
            f"{test.__name__} does not take {names}"
        )
        take_each.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return take_each

    return decorate
