"""One module a technique: which plans to compare with, and what the comparison says."""
