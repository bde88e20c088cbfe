"""What a planted fault of a worker is: a small worker that says what is wrong."""

from __future__ import annotations

from typing import ClassVar

from ds4proto_fuzz.mutants.small_worker import SmallWorker

__all__ = ["Fault"]


class Fault(SmallWorker):
    """Base of the faults: ``about`` says what is wrong, ``kind`` its class."""

    about: ClassVar[str] = "no fault at all"
    kind: ClassVar[str] = ""
