"""Parts that all roles share: the linked agent, the plan, descriptors, listeners, and the partition table."""
