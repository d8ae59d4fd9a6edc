#!/usr/bin/env bash
# Runs every fuzz target for a while, one after the other.
#
#   tools/fuzz.sh [seconds each, default 30] [target ...]
#   tools/fuzz.sh short      as `make test` does: few runs from a fixed seed
#                            and the inputs in the tree, the same every time;
#                            Go's are left to `go test`, which tries their seeds
#
# Targets in Go are the functions Fuzz... of test files; what one finds is
# written into its package's testdata/fuzz, where every `go test` from then on
# tries it: commit it with the mend.
# Targets in Rust are the programs of fuzz/ (libFuzzer, on the stable
# toolchain); they begin with fuzz/corpus/TARGET, gather more in
# target/fuzz/corpus/TARGET, and write what they find to
# target/fuzz/found/TARGET: make a test of it, and commit that with the mend.
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

# What each does in some five seconds.
declare -A short_runs=([parse]=300000 [tcp_options]=300000 [connection_id]=300000 [plan]=10000 [icmp]=1200 [journey]=1500)

main() {
    [[ $seconds == short ]] || go_targets
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
    local file name triple programs
    triple=$(rustc -vV | sed -n 's/^host: //p')
    programs=target/fuzz/$triple/release
    for file in fuzz/fuzz_targets/*.rs; do
        name=$(basename "$file" .rs)
        is_wanted "$name" || continue
        # A --target keeps the flags away from build scripts.
        RUSTFLAGS=${coverage_flags[*]} cargo build --quiet --locked --release --manifest-path fuzz/Cargo.toml \
            --target "$triple" --target-dir target/fuzz --bin "$name"
        run_target "$programs/$name" "$name"
        targets=$((targets + 1))
    done
}

run_target() {
    local program=$1 name=$2 gathered=target/fuzz/corpus/$2 limit
    if [[ $seconds == short ]]; then
        # What earlier runs gathered here would make this one another.
        gathered=$(mktemp -d)
        limit=(-seed=1 -runs="${short_runs[$name]:?has no number of runs: give it one in tools/fuzz.sh}")
        printf '\n== %s in fuzz, %s runs\n' "$name" "${short_runs[$name]}"
    else
        limit=(-max_total_time="$seconds")
        printf '\n== %s in fuzz, %s s\n' "$name" "$seconds"
    fi
    mkdir -p "$gathered" "target/fuzz/found/$name"
    "$program" "${limit[@]}" -timeout=60 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
        -artifact_prefix="target/fuzz/found/$name/" "$gathered" "fuzz/corpus/$name"
    [[ $seconds != short ]] || rm -r "$gathered"
}

main
