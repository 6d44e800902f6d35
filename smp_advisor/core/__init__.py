"""What every room shares: doors to files and words, tables, arithmetic, imports."""

GIB = 2**30
"""Bytes of a GiB."""
