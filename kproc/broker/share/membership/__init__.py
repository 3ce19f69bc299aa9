"""Share groups at the group coordinator: members, the simple assignor, records 10 to 15 (KIP-932).

A share group is an entry in the coordinator's dictionary of groups (group/coordinator.py). The Handler runs it. Its
state follows its records (state.py); decisions are pure functions (assignor.py) or rules without I/O (group.py).
"""
