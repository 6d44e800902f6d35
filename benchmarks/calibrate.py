"""Fit the constants of the cost model to published runs.

    python benchmarks/calibrate.py THROUGHPUT.csv [--write]

A few constants, each with a physical meaning and a prior, are fitted together to all rows. Nothing is fitted per row,
model or source. `--write` writes the values to the table of constants.
"""

from __future__ import annotations

import sys

from accuracy_rows.calibration import main

if __name__ == "__main__":
    sys.exit(main())
