"""Measure what one run of your own teaches: calibrate with one run of a source, predict the others.

    python benchmarks/own_run.py THROUGHPUT.csv MEMORY.csv AWS_THROUGHPUT.csv

Every source with several runs is left out of the fit of the constants. Each of a few of its runs calibrates in turn,
and the other runs of the source are predicted before and after. The report has the errors and the share of runs
within the stated 95 % intervals.
"""

import sys

from accuracy_rows.own_run import main

if __name__ == "__main__":
    sys.exit(main())
