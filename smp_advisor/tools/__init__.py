"""The advisor as a tool: short answers of one form for the command line, pipelines and assistants."""
