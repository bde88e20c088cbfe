#!/usr/bin/env bash
# Everything that needs a CUDA device, in under five minutes: are the kernels' bytes
# equal, how fast are they beside the device's own copy, do whole runs give the same
# text. Run it where a device is; the exit status is 2 where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
export OMP_NUM_THREADS=1
"$python" -m pip install --quiet --no-deps -e . 2>/dev/null || export PYTHONPATH=.:reference_runtime
exec timeout 290 "$python" -m bench.gpu "$@"
