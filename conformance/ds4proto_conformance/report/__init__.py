"""Reports: one stream of JSON lines, and everything that is made of it."""
