"""Published comparisons of sharding groups, and their predictions."""
