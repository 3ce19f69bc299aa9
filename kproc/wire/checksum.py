"""CRC-32C by the compiled module of the library `crc32c`, loaded without the library's package.

`import crc32c` would search the metadata of all installed packages for its own version, which takes a tenth of the time
of a broker's start.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:

    def _compiled():
        """Load and return the compiled module of the library `crc32c`, without the library's package.

        If the library has no compiled module of the expected name, import the package.
        """
        package = find_spec("crc32c")
        places = package.submodule_search_locations if package is not None else None
        spec = PathFinder.find_spec("_crc32c", places) if places else None
        if spec is None:
            import crc32c

            return crc32c
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    crc32c = _compiled().crc32c
