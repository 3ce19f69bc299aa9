"""`python -m kproc`: the same command line as the `kproc` script."""

from __future__ import annotations

from kproc.cli.main import main

if __name__ == "__main__":
    main()
