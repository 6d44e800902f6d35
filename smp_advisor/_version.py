"""The version of the package; `js/package.json` says the same."""

__version__ = "0.1.0"
