"""Strategies of parallelism, one per file, and `DataParallel` for your own programs."""
