"""The version of the package; equal to the version in `js/package.json`."""

__version__ = "0.1.0"
