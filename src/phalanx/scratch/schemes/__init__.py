"""How the work of a step is split among ranks: a scheme a file, each told by its difference from
`alone.py`."""
