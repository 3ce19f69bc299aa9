"""Certificates for the tests of TLS, and a disk that nobody waits for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.certificates import Certificates


@pytest.fixture(scope="session", autouse=True)
def unsynced_disk() -> Iterator[None]:
    """Let `fdatasync` only check its descriptor: no test here cuts the host's power, and a sync takes milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda descriptor: os.fstat(descriptor) and None)
        yield


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    # Imported here, because most runs need no certificates, and the library behind them loads slowly.
    from tests.support.certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))
