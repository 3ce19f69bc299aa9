"""Mistakes: everything that is wrong with a specification in one run, instead of the first thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kproc.pipeline.toml_table import SpecError, Table

_T = TypeVar("_T")


class Mistakes:
    """What was found so far."""

    def __init__(self) -> None:
        self._found: list[SpecError] = []

    def of(self, make: Callable[[Table], _T], table: Table) -> _T | None:
        """What `make` reads out of a table, or None, with every mistake that it finds there.

        It stops at the first. So the key of that is taken away and it is asked again; what it then misses, or says of
        the key that was taken away, is of our making and no mistake.
        """
        left, removed, is_whole = table, list[str](), True
        while True:
            try:
                made = make(left)
            except SpecError as error:
                key = left.key_of(error.path)
                is_ours = bool(removed) and (key is None or _may_follow(error, removed))
                if not is_ours:
                    self._found.append(error)
                if key is None or is_ours:
                    return None
                if ": unknown key" not in str(error):
                    removed.append(key)
                is_whole = False
                left = left.without(key)
            else:
                return made if is_whole else None

    def run(self, check: Callable[[], object]) -> None:
        """One more check that says at most one thing."""
        try:
            check()
        except SpecError as error:
            self._found.append(error)

    def add(self, errors: Iterable[SpecError]) -> None:
        self._found += errors

    def raise_all(self) -> None:
        """One SpecError with a line for each, in the order of the file, if there are any."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            ordered = sorted(self._found, key=lambda error: error.line)
            raise SpecError("\n  ".join([f"{len(ordered)} mistakes:", *map(str, ordered)]))


def _may_follow(error: SpecError, removed: Sequence[str]) -> bool:
    """Whether it may be said only because those keys were taken away. Which keys are known depends on others."""
    text = str(error).partition("; there are ")[0]
    only_names = all(each == "name" for each in removed)
    return any(each in text for each in removed) or (": unknown key" in text and not only_names)
