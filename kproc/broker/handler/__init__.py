"""The Handler role: partitions, coordinators, fast paths of requests, and the transfer of partitions."""
