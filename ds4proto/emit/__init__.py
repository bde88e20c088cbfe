"""Artefacts derived from the declarations: tables, dissectors, strategies.

Each module here reads ``ds4proto.schema`` and writes something that nobody should
write by hand. Importing the package imports nothing: hypothesis stays inside
``strategies`` and scapy inside the module that makes its layers.
"""
