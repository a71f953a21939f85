"""Rounds of a DistributedOptimizer: the open one, and the mistakes of a loop that each is checked for."""
