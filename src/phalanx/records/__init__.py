"""The schema of result files; imported by whoever writes or reads them."""
