#!/bin/sh
# make_venv.sh FOLDER [PYTHON]: create a virtual environment with Python 3.11 or newer.
set -eu

folder=$1
python=${2:-}

if [ -z "$python" ]; then
    for name in python3.11 python3.12 python3.13 python3.14 python3; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
        then
            python=$name
            break
        fi
    done
fi
if [ -z "$python" ]; then
    echo "ds4proto needs Python 3.11 or newer and found none." >&2
    echo "Debian and Ubuntu: apt-get install python3-venv; macOS: brew install python" >&2
    echo "Or name one yourself: make setup PYTHON=/path/to/python3" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$python is older than Python 3.11." >&2
    exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "$python cannot create virtual environments: a package is missing." >&2
    echo "Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
fi

echo "Creating $folder with $("$python" --version)"
"$python" -m venv "$folder"
