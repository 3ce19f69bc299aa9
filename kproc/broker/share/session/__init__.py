"""Share sessions at the home of a connection, and the APIs ShareFetch and ShareAcknowledge (KIP-932).

A session lists the partitions that a member fetches (`sessions.py`). ShareFetch (`share_fetch.py`) sends the member's
acknowledgements to the owners of the partitions (`acknowledge.py`) and acquires records from them (`acquire.py`).
"""
