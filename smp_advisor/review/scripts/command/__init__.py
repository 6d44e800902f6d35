"""``smp-advisor-check``: options, configuration, files, selection and output of the script checker as a command."""
