"""Checks of scripts on the command line: options, files, selection and output."""
