"""Measures drawn as Vega-Lite charts, a family a file."""
