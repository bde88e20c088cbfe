"""Commands of ``ds4proto fuzz``."""
