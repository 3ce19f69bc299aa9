"""What all roles share: the linked agent, calls, requests and their dispatch, the plan, the partition table."""
