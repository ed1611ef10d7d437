"""Measurements: each is one command that prints one JSON object, and a table on a terminal."""
