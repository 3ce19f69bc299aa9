"""Each real client behind one shape: `produce`, `consume`, `tail`. No consumer groups: assign and seek only.

An adapter adds nothing that the client does not do by itself; it never retries what the client gave up on.
"""
