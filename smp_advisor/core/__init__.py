"""Shared by every room: doors to files and words, tables, the HTML of a sheet, arithmetic, imports."""

GIB = 2**30
"""Bytes of a GiB."""
