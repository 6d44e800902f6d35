"""Charts as SVG text: pure functions from data to drawings, the same as those of ``js/src/charts``."""
