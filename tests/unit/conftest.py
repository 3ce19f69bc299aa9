"""Certificates for the tests of TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    # Imported here, because most runs need no certificates, and the library behind them loads slowly.
    from tests.support.certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))
