"""The controller: metadata changes, kproc's own operations, the control listener."""
