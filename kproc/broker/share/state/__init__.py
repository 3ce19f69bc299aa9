"""The share coordinator: the stored state of share partitions, as records of `__share_group_state`.

A share partition is a topic's partition as one share group reads it. `messages.py` has the requests.
"""
