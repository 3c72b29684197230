"""One runtime for jobs of ranks: start them, watch their records, judge how they ended."""
