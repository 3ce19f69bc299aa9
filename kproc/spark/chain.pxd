# The types of chain.py when it is compiled: see scripts/build-compiled.
cimport cython

@cython.locals(row=cython.longlong, number=cython.longlong, position=cython.longlong, end=cython.longlong,
               left=cython.longlong, byte=cython.uint, length=cython.ulonglong, shift=cython.int, _=cython.longlong)
cpdef bint record_starts(
    const unsigned char[::1] raw,
    const long long[::1] begins,
    const long long[::1] ends,
    const long long[::1] counts,
    long long[::1] starts,
)
