"""How the system is run: on one machine (``python -m deploy.laptop``), and on a cluster (README.md beside this)."""
