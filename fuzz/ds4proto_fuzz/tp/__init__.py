"""Tensor-parallel ranks under fire: workers and leaders (DS4T, DS4B)."""
