#!/usr/bin/env bash
# Make .venv from the locked requirements; does nothing when they have not changed.
set -euo pipefail
cd "$(dirname "$0")/.."

# As an installer does. Where PYTHONDONTWRITEBYTECODE is set nothing else would, and every command
# would compile every module anew.
compile() {
    .venv/bin/python -m compileall -q orchestrator receipts
}

wanted=$({ pwd; cat requirements/dev.txt pyproject.toml; } | sha256sum)
stamp=.venv/orch-setup
if [ "$wanted" = "$(cat "$stamp" 2>/dev/null)" ]; then
    compile
    exit 0
fi

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "orch needs Python 3.11 or later as python3; or say: make PYTHON=/path/to/python" >&2
    exit 69
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    scripts/debian_packages.sh python3-venv
fi

"$python" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
.venv/bin/pip install --quiet --disable-pip-version-check --no-index --no-deps \
    --no-build-isolation --editable .
compile
echo "$wanted" > "$stamp"
