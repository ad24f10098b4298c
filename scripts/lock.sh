#!/usr/bin/env bash
# Lock every set of requirements with hashes and without the address of any index.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {
    .venv/bin/uv pip compile --quiet --upgrade --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate --emit-build-options "$@"
}

# A build of torch without CUDA: from the folders that pip is told to find wheels in, or else from
# the index that uv knows as `cpu`.
without_cuda=()
for place in ${PIP_FIND_LINKS:-$(.venv/bin/pip config get global.find-links 2> /dev/null)}; do
    without_cuda+=(--find-links "$place")
done
[ ${#without_cuda[@]} -gt 0 ] || without_cuda=(--torch-backend cpu)

lock_recipe() {
    local recipe=$1 parent options=()
    if grep -q '+cpu$' "$recipe"; then
        options+=("${without_cuda[@]}")
    fi
    parent=$(sed -n 's/^-c //p' "$recipe")
    if [ -n "$parent" ]; then # what the image below has is not installed again
        mapfile -t -O "${#options[@]}" options < <(sed -n 's/^\([a-z0-9._-]*\)==.*/--no-emit-package=\1/p' \
            "$(dirname "$recipe")/$parent")
    fi
    lock "$recipe" "${options[@]}" --output-file "${recipe%.in}.lock"
}

lock --universal pyproject.toml --output-file requirements/runtime.txt
lock --universal --extra hub --constraint requirements/runtime.txt pyproject.toml \
    --output-file requirements/hub.txt
lock --universal --extra dev --constraint requirements/hub.txt pyproject.toml \
    --output-file requirements/dev.txt
recipes=(containers/*/requirements.in)
for recipe in $(grep -L '^-c ' "${recipes[@]}") $(grep -l '^-c ' "${recipes[@]}"); do
    lock_recipe "$recipe"
done
