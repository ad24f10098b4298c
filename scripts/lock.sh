#!/usr/bin/env bash
# Lock every set of requirements with hashes and without the address of any index.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {
    .venv/bin/uv pip compile --quiet --upgrade --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate "$@"
}

lock --universal pyproject.toml --output-file requirements/runtime.txt
lock --universal --extra dev --constraint requirements/runtime.txt pyproject.toml \
    --output-file requirements/dev.txt
for recipe in containers/*/requirements.in; do
    lock "$recipe" --output-file "${recipe%.in}.lock"
done
