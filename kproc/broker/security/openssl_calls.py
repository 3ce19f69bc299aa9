"""Calls of OpenSSL that the standard library's SSLContext lacks: ticket keys, no sessions, TLS 1.3 suites.

The calls need the address of OpenSSL's context and the library's symbols. In CPython 3.11 to 3.14 that address is the
first word behind the head of the SSLContext object. A statically linked Python may hide the symbols. Without either,
`library()` returns None.
"""

from __future__ import annotations

import _ssl
import ctypes
import ssl
import sys
from functools import cache
from typing import Final

TICKET_KEY_BYTES: Final = 80
_SET_TICKET_KEYS: Final = 59  # SSL_CTRL_SET_TLSEXT_TICKET_KEYS
_SET_CACHE_MODE: Final = 44  # SSL_CTRL_SET_SESS_CACHE_MODE
_CACHE_OFF: Final = 0  # SSL_SESS_CACHE_OFF


@cache
def library() -> ctypes.CDLL | None:
    """Return the OpenSSL library that this Python has loaded, or None if its contexts cannot be accessed."""
    path = getattr(_ssl, "__file__", None)
    if sys.implementation.name != "cpython" or path is None:
        return None
    # Open the extension module `_ssl`. dlsym also searches the libraries that it is linked with, so this finds the
    # OpenSSL that Python uses.
    found = ctypes.CDLL(path)
    try:
        found.SSL_CTX_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p]
        found.SSL_CTX_ctrl.restype = ctypes.c_long
        found.SSL_CTX_get_options.argtypes = [ctypes.c_void_p]
        found.SSL_CTX_get_options.restype = ctypes.c_uint64
        found.SSL_CTX_set_ciphersuites.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        found.SSL_CTX_set_ciphersuites.restype = ctypes.c_int
    except AttributeError:
        return None
    # Check the address with a call that only reads its memory, because a call that changes a wrong address could crash
    # the process.
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    probe.options |= ssl.OP_NO_RENEGOTIATION
    address = _address_of(probe)
    is_it = found.SSL_CTX_get_options(address) == int(probe.options)
    size = found.SSL_CTX_ctrl(address, _SET_TICKET_KEYS, 0, None) if is_it else 0
    return found if size == TICKET_KEY_BYTES else None


def set_ticket_keys(context: ssl.SSLContext, keys: bytes) -> bool:
    """Use these keys for session tickets. If OpenSSL was not found or refuses them, return False: random keys stay."""
    openssl = library()
    if openssl is None:
        return False
    return bool(openssl.SSL_CTX_ctrl(_address_of(context), _SET_TICKET_KEYS, len(keys), keys) == 1)


def keep_no_sessions(context: ssl.SSLContext) -> bool:
    """Disable the resumption of TLS 1.2 sessions by id. Return False if the OpenSSL library was not found."""
    openssl = library()
    if openssl is None:
        return False
    openssl.SSL_CTX_ctrl(_address_of(context), _SET_CACHE_MODE, _CACHE_OFF, None)
    return True


def set_tls13_suites(context: ssl.SSLContext, suites: str) -> bool:
    """Allow only these suites, separated by colons, in TLS 1.3.

    Return False if OpenSSL was not found or does not know one of them.
    """
    openssl = library()
    if openssl is None:
        return False
    return bool(openssl.SSL_CTX_set_ciphersuites(_address_of(context), suites.encode()) == 1)


def _address_of(context: ssl.SSLContext) -> int:
    # CPython stores the SSL_CTX pointer directly behind the object's head. library() has checked that with a harmless
    # call.
    address = ctypes.c_void_p.from_address(id(context) + object.__basicsize__).value
    assert address is not None
    return address
