"""The files that tidy looks at: each is parsed and walked once, and only what the rules ask about is kept.

The trees themselves are not kept: with all of them alive, each collection of garbage goes through a million nodes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "kproc"


@cache
def package_files() -> tuple[Path, ...]:
    """Every module of the package."""
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def all_files() -> tuple[Path, ...]:
    """Every Python file of the repository."""
    folders = ("kproc", "examples", "tests", "bench", "scripts")
    return tuple(sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")))


@cache
def text_of(path: Path) -> str:
    """What the file says."""
    return path.read_text(encoding="utf-8")


def relative(path: Path) -> str:
    """The path as people write it."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """Dotted name: kproc.wire.codec."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Function(NamedTuple):
    """A function or method, nested ones too."""

    name: str
    """Qualified: Class.method, function.inner."""
    line: int
    line_count: int


class Class(NamedTuple):
    """A class, nested ones too."""

    name: str
    line: int
    docstring: str
    is_top_level: bool


@dataclass(slots=True)
class Survey:
    """What one walk over a file's tree found."""

    docstring: str = ""
    statement_count: int = 0
    """Of the module itself, the docstring included."""
    imports: list[tuple[int, str]] = field(default_factory=list)
    """(line, dotted name) of each import that runs, those inside functions too."""
    type_imports: list[tuple[int, str]] = field(default_factory=list)
    """(line, dotted name) of each import under TYPE_CHECKING: nothing but annotations needs it."""
    functions: list[Function] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)
    constants: set[str] = field(default_factory=set)
    """Names that the module itself assigns."""
    uses: list[tuple[int, str]] = field(default_factory=list)
    """(line, dotted name) of what is read, called or imported by name."""
    attributes: list[tuple[int, str]] = field(default_factory=list)
    """(line, name) of each `.name`, whatever stands before it."""
    fields: set[tuple[str, str]] = field(default_factory=set)
    """(class, name) of each `self.name` that is assigned."""
    strings: set[tuple[str, str]] = field(default_factory=set)
    """(class, string) of each string inside a class: its slots are among them."""


def dotted(node: ast.expr) -> str:
    """`time.sleep` of the node for `time.sleep`; empty for what is not a plain dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def _assigned(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return (target.id for target in targets if isinstance(target, ast.Name))


def _imported(path: Path, node: ast.stmt) -> list[tuple[int, str]]:
    match node:
        case ast.Import():
            return [(node.lineno, alias.name) for alias in node.names]
        case ast.ImportFrom():
            assert node.level == 0, f"{relative(path)}:{node.lineno}: relative import"
            # `from kproc.wire import codec` imports kproc.wire.codec.
            return [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return []


@cache
def survey_of(path: Path) -> Survey:
    """The file, parsed and walked."""
    tree = ast.parse(text_of(path), str(path))
    found = Survey(docstring=ast.get_docstring(tree) or "", statement_count=len(tree.body))
    for statement in tree.body:
        found.constants.update(_assigned(statement))
    top_level = set(tree.body)
    left: list[tuple[ast.AST, str, str]] = [(tree, "", "")]
    while left:
        node, prefix, owner = left.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                found.functions.append(Function(f"{prefix}{node.name}", node.lineno, count))
                prefix = f"{prefix}{node.name}."
            case ast.ClassDef():
                text = ast.get_docstring(node) or ""
                found.classes.append(Class(node.name, node.lineno, text, node in top_level))
                prefix, owner = f"{prefix}{node.name}.", node.name
            case ast.Name():
                found.uses.append((node.lineno, node.id))
            case ast.Attribute():
                found.uses.append((node.lineno, dotted(node)))
                found.attributes.append((node.lineno, node.attr))
                if owner and dotted(node.value) == "self" and not isinstance(node.ctx, ast.Load):
                    found.fields.add((owner, node.attr))
            case ast.Import():
                found.imports += _imported(path, node)
            case ast.ImportFrom():
                names = _imported(path, node)
                found.imports += names
                found.uses += names
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for statement in node.body:
                    found.type_imports += _imported(path, statement)
                left += [(child, prefix, owner) for child in node.orelse]
                continue
            case ast.Constant(value=str() as value) if owner:
                found.strings.add((owner, value))
        left += [(child, prefix, owner) for child in ast.iter_child_nodes(node)]
    return found


def imported_modules(path: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of each import that runs, those inside functions too."""
    return survey_of(path).imports


# By the text: to parse all the tests would take seconds.
TEST = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)
