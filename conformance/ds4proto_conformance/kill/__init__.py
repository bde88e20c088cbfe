"""The kill matrix: every case against every planted fault of its role.

Who tests the tester: a case that no fault fails proves nothing. ``python -m
ds4proto_conformance.kill`` builds the matrix and can be stopped and run again.
"""

from ds4proto_conformance.kill.meet import KILLS, Row, meet

__all__ = ["KILLS", "Row", "meet"]
