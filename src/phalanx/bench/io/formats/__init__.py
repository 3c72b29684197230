"""Ways to store samples of one size, each written and read at random."""
