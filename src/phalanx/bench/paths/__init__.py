"""The ways in which a collective can be carried, a family a file."""
