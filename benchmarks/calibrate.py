"""Fit the constants of the cost model to published runs.

    python benchmarks/calibrate.py THROUGHPUT.csv... [--write]
    python benchmarks/calibrate.py --keep THROUGHPUT.csv...

A few constants, each with a physical meaning and a prior, are fitted together to all rows. Nothing is fitted per row,
model or source. `--write` writes the values to the table of constants. `--keep` fits nothing and reports, in
seconds, the runs on AWS with users' code (tables in a folder `aws`) and sources that were left out of the fit.
"""

from __future__ import annotations

import sys

from accuracy_rows.calibration import main

if __name__ == "__main__":
    sys.exit(main())
