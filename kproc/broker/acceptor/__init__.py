"""The Acceptor: accept connections within the quotas and pass them to the Processors."""
