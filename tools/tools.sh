#!/usr/bin/env bash
# Builds the programs pinned in tools/tools.mod into .cache/bin, where tools/generate.sh and
# `make lint` find them. It changes nothing outside the tree, and a second run does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.cache/bin/.built-from
want=$(cat tools/tools.mod tools/tools.sum; go version)
if [[ -f $stamp && $(<"$stamp") == "$want" ]]; then
    exit 0
fi
mkdir -p .cache/bin
GOBIN=$PWD/.cache/bin go install -modfile=tools/tools.mod tool
printf '%s\n' "$want" >"$stamp"
