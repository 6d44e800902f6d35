"""``smp-advisor``: the advisor on the command line and in CI."""

import smp_advisor.core.own_path  # noqa: F401 - before all others
