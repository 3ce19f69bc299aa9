"""Imports modules before the supervisor forks the roles, which would otherwise import them at their first use.

An import opens files. In a role without a free descriptor the import would fail, and with it the request that needs the
module. If a broker starts without TLS, signed tokens or faults, their modules are not preloaded, so a TLS listener that
is added at run time causes such a late import.
"""

from __future__ import annotations

import codecs
import importlib
from typing import Final

from kproc.broker.config import Config

_TEXT_CODECS: Final = ("ascii", "idna", "latin-1", "unicode_escape", "utf-16-be")
# The standard library imports `_strptime` when the first date of a certificate is parsed.
_FOR_TLS: Final = ("kproc.broker.processor.tls_connections", "kproc.broker.security.certificate", "_strptime")
# With kproc.faults.enable the controller and the cleaner use files through this module (broker.py: _fs_with_faults).
_FOR_FAULTS: Final = "kproc.broker.faults.disk"
_FOR_SIGNED_TOKENS: Final = (
    "kproc.broker.security.sasl.key_set",
    "kproc.broker.security.sasl.signed_tokens",
    "joserfc.errors",
    "joserfc.jwk",
    "joserfc.jwt",
)


def load(config: Config) -> None:
    """Import the modules that a broker with these settings needs."""
    for name in _TEXT_CODECS:
        codecs.lookup(name)
    if any(each.protocol.endswith("SSL") for each in config.listeners):
        for name in _FOR_TLS:
            importlib.import_module(name)
    if config.kproc_faults_enable:
        importlib.import_module(_FOR_FAULTS)
    if any(name.endswith("jwks.endpoint.url") for name in config.explicit_settings):
        for name in _FOR_SIGNED_TOKENS:
            importlib.import_module(name)
