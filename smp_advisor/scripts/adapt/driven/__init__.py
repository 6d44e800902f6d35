"""Loops that another library runs (Accelerate, Trainer, Lightning, Fabric): an argument chooses their parallelism."""
