#!/usr/bin/env bash
# Runs every fuzz target for a while, one after the other.
#
#   tools/fuzz.sh [seconds each, default 30]
#
# What a target finds is written into its package's testdata/fuzz, where every
# `go test` from then on tries it: commit it with the mend.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly seconds=${1:-30}
targets=0

while IFS=: read -r file declaration; do
    name=${declaration#func }
    printf '\n== %s in %s, %s s\n' "$name" "${file%/*}" "$seconds"
    go test -run '^$' -fuzz "^$name\$" -fuzztime "${seconds}s" "./${file%/*}"
    targets=$((targets + 1))
done < <(git ls-files '*_test.go' | xargs grep -H -o '^func Fuzz[A-Za-z0-9_]*')

if ((targets == 0)); then
    echo "fuzz: there are no targets: did something move?" >&2
    exit 1
fi
