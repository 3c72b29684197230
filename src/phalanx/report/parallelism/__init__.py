"""The page of a parallelism study: every way to split a training, beside its formulas."""
