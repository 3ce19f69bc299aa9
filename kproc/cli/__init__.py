"""The command line. Each command imports what it needs when it runs: `kproc version` must not load a client
library, and the broker must not either, because its children inherit what it has loaded.
"""
