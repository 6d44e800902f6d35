"""Reading of cells and scripts, which never runs them, and the findings."""
