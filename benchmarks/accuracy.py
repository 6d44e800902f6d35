"""Measure the error of the cost model on measured runs.

Run it with ``python benchmarks/accuracy.py`` on the tables in ``validation``, or on others (throughput, memory,
configurations published as working, largest batches; the columns of a file determine its kind). It maps every verified
and complete row to a model, a cluster, a job and a plan, predicts, and prints errors by source, with the share of rows
inside the stated interval. ``--json`` prints one object, ``--residuals`` writes every row with its interval. Rows that
no plan can express are skipped and counted by reason, never because of a measured value.
"""

import sys

from accuracy_rows.command import main

if __name__ == "__main__":
    sys.exit(main())
