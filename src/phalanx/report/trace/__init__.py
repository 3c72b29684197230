"""The trace of all ranks of a run: read, aligned, merged, written for Perfetto."""
