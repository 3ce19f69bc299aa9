"""Import and call the functions of a specification, `module:function` or `file.py:function`, with one-line errors."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from kproc.pipeline.errors import sentence


class CodeError(Exception):
    """A user's function cannot be imported, or it raised an error. The message is one line."""


def resolve(reference: str, directory: Path) -> Callable[..., Any]:
    """Import and return the function. `directory` is the specification's; its modules can be imported, too."""
    name, _, function = reference.rpartition(":")
    module = _from_file(Path(name)) if name.endswith(".py") else _by_name(name, directory)
    found = getattr(module, function, None)
    if not callable(found):
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise CodeError(f"{reference}: no function {function} there; there are {', '.join(known) or 'none'}")
    return found  # type: ignore[no-any-return]


def call(reference: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a user's function.

    If it raises an error, raise CodeError with one line, which has the error's file and line.
    """
    try:
        return function(*arguments, **named)
    except Exception as error:
        raise CodeError(f"{reference}: {_said(error)}") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CodeError(f"{path}: no such file")
    known = sys.modules.get(path.stem)
    if known is not None and Path(known.__file__ or "").resolve() == path.resolve():
        return known
    if known is not None or path.stem in sys.stdlib_module_names:
        raise CodeError(
            f"{path}: Python has another module {path.stem}, from its library or loaded before; "
            "give the file another name"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise CodeError(f"{path}: {_said(error)}") from error
    _ship(module)
    return module


def _by_name(name: str, directory: Path) -> ModuleType:
    if str(directory) not in sys.path:
        sys.path.insert(_behind_standard_library(), str(directory))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CodeError(f"no module {name}, neither installed nor in {directory}") from None
        raise CodeError(f"{name}: {_said(error)}") from error
    except Exception as error:
        raise CodeError(f"{name}: {_said(error)}") from error
    if Path(module.__file__ or "").resolve().is_relative_to(directory.resolve()):
        _ship(module)
    return module


def _behind_standard_library() -> int:
    """Return the index in `sys.path` after the standard library.

    A project's directory that is inserted there cannot hide a module of the standard library, such as `queue`.
    """
    library = os.path.dirname(os.__file__)
    parts = (library, os.path.join(library, "lib-dynload"))
    return max((index for index, path in enumerate(sys.path) if path in parts), default=-1) + 1


def _ship(module: ModuleType) -> None:
    """Pickle functions of this module by value, because Spark's workers cannot import it by name."""
    try:
        from pyspark.cloudpickle import register_pickle_by_value
    except ImportError:
        # PySpark is not installed. `kproc pipeline check --no-spark` works without it and pickles nothing.
        return
    register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _said(error: Exception) -> str:
    """Describe an error as `ValueError: words (steps.py:12)`, with the innermost line that is not in a library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith("<")
        and "site-packages" not in frame.filename
        and frame.filename != __file__
    ]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    lines = str(getattr(error, "desc", None) or error).strip().splitlines()
    return f"{type(error).__name__}: {sentence(lines[0]) if lines else ''}{place}"
