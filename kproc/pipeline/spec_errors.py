"""SpecErrors: collects all errors of a specification, so that one run reports them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kproc.pipeline.toml_table import SpecError, SpecTable

_T = TypeVar("_T")


class SpecErrors:
    """The errors of a specification that were found so far, so that one run reports them together."""

    def __init__(self) -> None:
        self._found: list[SpecError] = []

    def of(self, make: Callable[[SpecTable], _T], table: SpecTable) -> _T | None:
        """Return the result of `make(table)`, or None if it raises errors. Collect all of its errors.

        `make` raises its first error only. So remove that error's key from the table and call `make` again. An error
        that the removal itself causes, for example a missing key, is ignored and ends the search.
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
        """Run a check, which raises at most one SpecError, and collect that error."""
        try:
            check()
        except SpecError as error:
            self._found.append(error)

    def add(self, errors: Iterable[SpecError]) -> None:
        self._found += errors

    def raise_all(self) -> None:
        """Raise one SpecError with a line for each collected error, in the order of the file, if there are any."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            ordered = sorted(self._found, key=lambda error: error.line)
            raise SpecError("\n  ".join([f"{len(ordered)} errors:", *map(str, ordered)]))


def _may_follow(error: SpecError, removed: Sequence[str]) -> bool:
    """Return True if removing these keys can have caused the error.

    Without the removed key, other keys can seem unknown, because the known keys of a table depend on its kind.
    """
    text = str(error).partition("; there are ")[0]
    only_names = all(each == "name" for each in removed)
    return any(each in text for each in removed) or (": unknown key" in text and not only_names)
