"""Rehearsal of a plan: the scaled copy on a few local processes with PyTorch's own parallelism."""
