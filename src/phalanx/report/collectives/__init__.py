"""Collectives that were measured: records → measures → findings, charts, tables."""
