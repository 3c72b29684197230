"""Published measurements of the training that a scaling study makes, to be shown beside it."""
