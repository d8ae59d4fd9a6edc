#!/usr/bin/env bash
# Runs each fuzz target for some time, one after the other.
#
#   tools/fuzz.sh [seconds each, default 30] [target ...]
#
# Go targets are the functions Fuzz... of test files. Inputs that fail are written to the
# package's testdata/fuzz, and every later `go test` tries them: commit them with the fix.
#
# Rust targets are in fuzz/src/targets (libFuzzer, on the stable toolchain). They start with the
# inputs in fuzz/corpus/TARGET.tar, collect more in target/fuzz/corpus/TARGET, and write failing
# inputs to target/fuzz/found/TARGET: make a test of each, and commit it with the fix. `make
# test` tries each input of the archives once.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly seconds=${1:-30}
readonly wanted=("${@:2}")
targets=0

# What `cargo fuzz` sets too, but for the sanitizers, which need nightly.
coverage_flags=(
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
    -Ccodegen-units=1
    --cfg fuzzing
)

main() {
    go_targets
    rust_targets
    if ((targets == 0)); then
        echo "fuzz: there is no such target: did something move?" >&2
        exit 1
    fi
}

is_wanted() { ((${#wanted[@]} == 0)) || [[ " ${wanted[*]} " == *" $1 "* ]]; }

go_targets() {
    local file declaration name
    while IFS=: read -r file declaration; do
        name=${declaration#func }
        is_wanted "$name" || continue
        printf '\n== %s in %s, %s s\n' "$name" "${file%/*}" "$seconds"
        go test -run '^$' -fuzz "^$name\$" -fuzztime "${seconds}s" "./${file%/*}"
        targets=$((targets + 1))
    done < <(git ls-files '*_test.go' | xargs grep -H -o '^func Fuzz[A-Za-z0-9_]*')
}

rust_targets() {
    local archive name program=
    for archive in fuzz/corpus/*.tar; do
        name=$(basename "$archive" .tar)
        is_wanted "$name" || continue
        [[ -n $program ]] || build_program
        run_target "$name"
        targets=$((targets + 1))
    done
}

# A --target keeps the flags away from build scripts.
build_program() {
    local triple
    triple=$(rustc -vV | sed -n 's/^host: //p')
    RUSTFLAGS=${coverage_flags[*]} cargo build --quiet --locked --profile fuzz -p guideway-fuzz --features libfuzzer \
        --target "$triple" --target-dir target/fuzz
    program=target/fuzz/$triple/fuzz/guideway-fuzz
}

run_target() {
    local name=$1 gathered=target/fuzz/corpus/$1 given=target/fuzz/given/$1
    printf '\n== %s in fuzz, %s s\n' "$name" "$seconds"
    rm -rf "$given"
    mkdir -p "$given" "$gathered" "target/fuzz/found/$name"
    tar -xf "fuzz/corpus/$name.tar" -C "$given"
    FUZZ_TARGET=$name "$program" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -verbosity=0 \
        -print_final_stats=1 -artifact_prefix="target/fuzz/found/$name/" "$gathered" "$given"
}

main
