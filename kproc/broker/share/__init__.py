"""Share groups (KIP-932): queues over topics. Members acquire records, and accept, release or reject each of them."""
