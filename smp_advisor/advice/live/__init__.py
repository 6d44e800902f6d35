"""The plan on screen, moves of its settings, history, snapshots and comparisons."""
