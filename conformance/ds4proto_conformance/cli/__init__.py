"""The commands ``check``, ``smoke`` and ``compare``."""
