"""Replacement of functions of PyTorch, in a child process that ends with its run."""

from __future__ import annotations

__all__ = ["replace"]


def replace(owner: object, **attributes: object) -> None:
    """Set attributes of a module or class, whose types are those of the originals by design."""
    for name, value in attributes.items():
        setattr(owner, name, value)
