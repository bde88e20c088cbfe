"""What every test needs before anything is imported."""

from __future__ import annotations

import os

# Several threads of a maths library wait by spinning: on a busy machine of few cores
# that makes small products ten times slower. Child processes inherit this.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
