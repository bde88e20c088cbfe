#!/bin/sh
# lane.sh PYTHON OUT: the RDMA lane in a virtual machine, its results in OUT/lane.json.
# PYTHON is a CPython 3.11 with the project and its runtime, as `make venv` makes it:
# the distribution's pyverbs has modules for that version alone.
set -eu
python=$1
out=$2
here=$(cd "$(dirname "$0")" && pwd)
[ "$(uname -s)" = Linux ] || { echo "test-rdma needs Linux: qemu, apt and soft-RoCE" >&2; exit 2; }
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    { echo "test-rdma needs CPython 3.11: python3-pyverbs has no modules for others" >&2; exit 2; }
bash "$here/run.sh" --prepare
mkdir -p "$out/site"
# the one folder of the distribution's packages that the guest's Python shall see
ln -sfn /usr/lib/python3/dist-packages/pyverbs "$out/site/pyverbs"
PYTHONPATH=$(cd "$out" && pwd)/site exec bash "$here/run.sh" -t 600 -w "$out" -- \
    "$python" "$here/lane.py" --out "$(cd "$out" && pwd)/lane.json"
