"""Base algorithms: each file reads like the algorithm box of its paper."""
