"""Gates over RDMA: one verbs interface, a simulated and a real provider, windows.

Nothing here imports torch; pyverbs is imported by its provider alone, when it is used.
"""
