"""Tensor parallelism: a leader and a worker, two ranks in lockstep (DS4T, DS4B)."""
