"""A folder for PYTHONPATH: its ``sitecustomize`` runs at the start of every Python process of a script."""
