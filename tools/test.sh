#!/usr/bin/env bash
# All tests, the quick ones first.
#
#   tools/test.sh [fast]
#
#   1. Rust: units, properties, golden packets      (cargo test)
#   2. Go: units, golden configs                    (go test, all but lab/)
#   3. the lab in namespaces, with the built programs (go test ./lab/...)
#
# Tests that need root skip themselves without it: in Go by t.Skip, in Rust by
# a line `SKIPPED name: why` on stderr.
#
# `fast` stops after 2. The last lines name every test that was skipped. In CI
# (CI=true) a skip is a failure: what is not run there is run nowhere.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly LOGS=$PWD/.cache/test
export SKIPPED_FILE=$LOGS/skipped
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

main() {
    mkdir -p "$LOGS"
    : >"$SKIPPED_FILE"
    go build -o .cache/bin/gotest ./tools/gotest

    rust_tests
    if is_root; then
        step "Programs that the tests in namespaces run"
        make build
    fi
    go_tests
    if [[ ${1-} != fast ]]; then
        lab_tests
    fi
    summary
}

is_root() { [[ $(id -u) == 0 ]]; }

step() { printf '\n== %s\n' "$*"; }

rust_tests() {
    step "Rust: units, properties, golden packets"
    cargo test --workspace 2>&1 | tee "$LOGS/rust.log"
    sed -n 's/^.*SKIPPED \(.*: needs .*\)$/\1/p' "$LOGS/rust.log" >>"$SKIPPED_FILE"
}

go_tests() {
    step "Go: units, golden configs"
    local packages
    mapfile -t packages < <(go list ./... | grep -v -E '/lab(/|$)')
    .cache/bin/gotest -timeout 5m "${packages[@]}"
}

lab_tests() {
    step "The lab"
    .cache/bin/gotest -count=1 -p 1 -timeout 30m ./lab/...
}

summary() {
    if [[ ! -s $SKIPPED_FILE ]]; then
        step "All tests passed, none was skipped"
        return
    fi
    step "Tests passed, but $(wc -l <"$SKIPPED_FILE") were skipped:"
    sed 's/^/skipped: /' "$SKIPPED_FILE"
    if [[ ${CI-} == true ]]; then
        echo "test: in CI no test may be skipped" >&2
        exit 1
    fi
}

main "$@"
