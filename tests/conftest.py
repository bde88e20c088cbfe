"""What every test needs before anything is imported."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# Several threads of a maths library wait by spinning: on a busy machine of few cores
# that makes small products ten times slower. Child processes inherit this.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# The same examples each time, and no example fails for the time that it took: what a
# machine is busy with must not decide. A test may ask for more of itself.
settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same")

# A job in the background of a script is born deaf to Ctrl-C, and so would be every
# process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
