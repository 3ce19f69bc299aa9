"""The files that tidy looks at, parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "kproc"
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def package_files() -> tuple[Path, ...]:
    """Every module of the package."""
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def all_files() -> tuple[Path, ...]:
    """Every Python file of the repository."""
    folders = ("kproc", "tests", "bench", "scripts")
    return tuple(sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")))


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed module."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def relative(path: Path) -> str:
    """The path as people write it."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """Dotted name: kproc.wire.codec."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, those inside functions and TYPE_CHECKING blocks too."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: relative import"
            # `from kproc.wire import codec` imports kproc.wire.codec.
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def functions(path: Path) -> Iterator[tuple[str, FunctionNode]]:
    """(qualified name, node) of every function and method."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, FunctionNode]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FunctionNode):
                yield f"{prefix}{child.name}", child
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    return walk(tree_of(path), "")
