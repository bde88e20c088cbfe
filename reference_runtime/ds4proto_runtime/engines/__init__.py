"""Engines: what computes the layers. Loaded by name, so that torch stays optional."""
