"""Shared by every room: doors to files and words, tables, the HTML of a sheet, arithmetic, imports."""

GIB = 2**30
"""Bytes of a GiB."""
MOST = 10**15
"""Parameters, tokens, USD and the like in one figure: exact as a float, and in columns of 64 bits."""
