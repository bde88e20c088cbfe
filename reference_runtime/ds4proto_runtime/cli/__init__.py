"""Commands of the reference runtime."""
