"""Values of the pages, a file a kind of study."""
