"""Every plan of a library, scored and ranked; the library for a run; clusters, and what would make a model fit."""
