"""The command line.

A command imports the modules that it needs when it runs, so that `kproc version` loads no client library. The broker
must not load one either, because its roles are forked and inherit all loaded modules.
"""
