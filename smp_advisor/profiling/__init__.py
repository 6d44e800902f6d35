"""What a model measures: traced in full, run as a scaled copy, run as a script, rehearsed as planned."""
