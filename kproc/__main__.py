"""`python -m kproc`, or this file started by its path: the command line of the `kproc` script."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def _import_own_package() -> None:
    """Import the package kproc from the directory of this file, whatever `sys.path` contains.

    `embedded.kproc_command` starts this file by its path and with -P. The child then runs the same kproc as its parent
    and imports no module from the working directory.
    """
    directory = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        "kproc", directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["kproc"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    if not __package__:
        _import_own_package()
    from kproc.cli.main import main

    main()
