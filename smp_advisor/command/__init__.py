"""``smp-advisor``: the advisor on the command line and in CI."""
