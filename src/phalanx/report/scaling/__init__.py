"""The page of a scaling study, and of runs that are compared with one another."""
