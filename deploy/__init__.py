"""How the system is run: today on one machine (``python -m deploy.laptop``)."""
