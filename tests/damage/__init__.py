"""The damage sweep: flip a bit, cut the tail, zero a page, in every file of a data directory, alone and in pairs.

`python -m tests.damage --minutes 60` runs it for an hour. Each case copies a data directory, damages one or two files,
starts a broker and reads everything. A case passes if the damage is repaired, if a client's CRC check finds it, or if
the partition of the file is refused. It fails if a client gets wrong data or none without an error, if a partition of
another file is touched, or if the start fails with more than one line, or for a file of a partition.
"""
