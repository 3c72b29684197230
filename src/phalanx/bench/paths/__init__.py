"""The measured implementations of the collectives, one family per file."""
