"""Fit the constants of the cost model to published runs.

    python benchmarks/calibrate.py THROUGHPUT.csv [--write]

Few constants, each with a physical meaning and a prior, are moved together until the predictions of all rows are as
near as they get; nothing is fitted per row, model or source. `--write` puts the values into the table of constants.
"""

from __future__ import annotations

import sys

from accuracy_rows.calibration import main

if __name__ == "__main__":
    sys.exit(main())
