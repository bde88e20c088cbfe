"""Small peers over the library's own machines: what mutants are made of.

They share no code with the reference runtime. Each runs in one thread, over socket
pairs for the kill matrix, or as a process over TCP (``python -m
ds4proto_conformance.peers ROLE MUTANT HOST PORT``).
"""
