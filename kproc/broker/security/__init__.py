"""Who a client is and what it may do: pure rules, without sockets, files or links."""
