"""Schemes to split the work of a step among ranks, one a file.

Each describes its difference from `single_process.py`.
"""
