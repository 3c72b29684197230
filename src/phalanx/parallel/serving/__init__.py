"""Decisions and state of a parameter server; `parallel/server.py` communicates."""
