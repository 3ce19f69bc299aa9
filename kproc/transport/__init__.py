"""Who runs a role, and how envelopes move between roles: as processes, as threads, or stepped inline."""
