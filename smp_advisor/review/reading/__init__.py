"""One reader of Python for both checkers: it follows scripts and cells, and never runs them."""
