#!/usr/bin/env bash
# Checks crates against deny.toml with cargo-deny, which is built once for it.
#
#   tools/deny.sh CHECK...      advisories, bans, licenses, sources
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VERSION=0.20.2 ROOT=$PWD/.cache/cargo-deny

if [[ $("$ROOT/bin/cargo-deny" --version 2>/dev/null) != "cargo-deny $VERSION" ]]; then
    CARGO_TARGET_DIR=$ROOT/target cargo install --quiet --locked --root "$ROOT" "cargo-deny@$VERSION"
    rm -rf "$ROOT/target"
fi
"$ROOT/bin/cargo-deny" --locked check --hide-inclusion-graph "$@"
