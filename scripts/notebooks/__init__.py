"""The notebooks of `notebooks/`, which are committed with their outputs: ``python -m scripts.notebooks``."""
