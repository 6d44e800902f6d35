"""How far the cost model is from measured runs.

Run it with ``python benchmarks/accuracy.py CSV...`` on tables of published measurements (throughput, memory,
configurations published as working, largest batches; a file's kind follows from its columns). It maps every row that is
verified and complete to a model, a cluster, a job and a plan, predicts, and prints errors by GPU and by kind of
parallelism; ``--json`` prints one object. What a plan cannot express is skipped and counted by reason, never because of
a measured value.
"""

import sys

from accuracy_rows.command import main

if __name__ == "__main__":
    sys.exit(main())
