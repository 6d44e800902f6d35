"""Compare 300 recommendations and 1,000 estimates of the present code with a committed record.

Run ``python benchmarks/regression.py`` after a change that must not change results. It repeats every request of
``regression_rows/data``, compares the results with the record and prints how many are the same, how many differ as
listed in ``intended.toml``, and the first differences of the others. The exit status is 1 if any difference is not
listed. ``--record`` writes the record: run it with the code that the results are to be compared with.
"""

import sys

from regression_rows.command import main

if __name__ == "__main__":
    sys.exit(main())
