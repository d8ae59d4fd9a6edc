#!/usr/bin/env bash
# Runs all tests.
#
#   tools/test.sh [fast | check]
#
#   1. build      every Rust test program, and the programs that labs run
#   2. labs       whole data centres in namespaces, two at a time (lab/...)
#   3. Rust       units, properties, golden packets, namespaces
#   4. Go         units, golden configs; beside 3, because the long ones only wait for timers
#
# `fast` runs only 3 and 4, without what needs root or the programs. `check` also lints, at the
# lowest priority beside 1 and 2, as labs mostly wait. Labs and namespaces stand for machines
# with processors of their own, so they have a higher priority than everything else here.
#
# Labs use the programs that `cargo test` builds anyway, so nothing is built twice; GUIDEWAY_BIN
# says where they are.
#
# Tests that need root skip themselves without it: in Go by t.Skip, in Rust by a line
# `SKIPPED name: why` on stderr.
#
# At the end it prints the seconds of each stage, the names of skipped tests, and `N passed, N
# failed, N skipped`. In CI (CI=true) a skip is a failure, because nothing else would run the
# test. An interrupted run leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/stages.sh

readonly LOGS=$PWD/.cache/test
export SKIPPED_FILE=$LOGS/skipped COUNTS_FILE=$LOGS/counts
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# As products are built; with one value for all, nothing is compiled twice.
export CGO_ENABLED=0
# What `make lint` does, quick ones first; those that run cargo last, for they
# wait for each other.
readonly LINTS=(format tree vectors deps go generated rust)
# `make lint` vets; `go test` would again, a minute of a processor.
readonly GO_TEST=(.cache/bin/gotest -vet=off)
readonly mode=${1-all}

main() {
    case $mode in
    all | fast | check) ;;
    lint | labs | rust_tests | go_tests) # by `beside`
        share "$2"
        $mode
        exit
        ;;
    *) echo "test: unknown '$mode': take fast, check, or nothing" >&2 && exit 2 ;;
    esac
    rm -rf "$LOGS"
    mkdir -p "$LOGS"
    touch "$SKIPPED_FILE" "$COUNTS_FILE"
    [[ $mode == fast ]] || export GUIDEWAY_BIN=$LOGS/bin
    trap finish EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    go build -o .cache/bin/gotest ./tools/gotest

    [[ $mode != check ]] || beside lint 19
    if [[ $mode != fast ]]; then
        stage build build
        beside labs -15
        stage labs wait "${running[labs]}"
    fi
    [[ $mode != check ]] || stage "lint, the rest" wait "${running[lint]}"
    beside go_tests 0 >"$LOGS/go.log" 2>&1
    beside rust_tests -10
    stage Rust wait "${running[rust_tests]}"
    stage "Go, the rest" end_go
    check_skips
}

# beside MODE NICE: this script's MODE in a session of its own, with that share.
declare -A running
beside() {
    setsid "$PWD/tools/test.sh" "$@" &
    running[$1]=$!
}

labs() { "${GO_TEST[@]}" -count=1 -p 1 -timeout 40m -parallel 99 ./lab/...; }

end_go() {
    local status=0
    wait "${running[go_tests]}" || status=$?
    cat "$LOGS/go.log"
    return $status
}

# One after the other, each with its log and, when it ended, its row.
lint() {
    local what begun status=0
    for what in "${LINTS[@]}"; do
        begun=$SECONDS
        if make "lint-$what" >"$LOGS/lint-$what.log" 2>&1; then
            row "lint-$what" $((SECONDS - begun)) passed >>"$LOGS/lints"
        else
            row "lint-$what" $((SECONDS - begun)) FAILED >>"$LOGS/lints"
            status=1
        fi
    done
    return $status
}

print_failed_lints() {
    local what
    for what in $(awk '/FAILED/ { print $1 }' "$LOGS/lints" 2>/dev/null); do
        printf '\n== %s\n' "$what"
        cat "$LOGS/$what.log"
    done
}

build() {
    # Its compiler waits for cargo's last programs and fills the gaps before.
    nice -n 19 make build-go BIN="$GUIDEWAY_BIN" TRIM= &
    cargo test --workspace --no-run
    wait $!
    install -D -t "$GUIDEWAY_BIN" "${CARGO_TARGET_DIR:-target}"/debug/guideway-{forwarder,agent}
}

# Only root can load eBPF programs, and install the compilers that are missing.
rust_tests() {
    if [[ $(id -u) == 0 ]]; then
        BPF_COMPILERS=$(tools/bpf-compilers.sh)
        export BPF_COMPILERS
    fi
    cargo test --workspace 2>&1 | tee "$LOGS/rust.log"
}

go_tests() {
    local packages
    mapfile -t packages < <(go list ./... | grep -v -E '/lab(/|$)')
    # More than processors: what takes long waits for timers.
    "${GO_TEST[@]}" -p 4 -timeout 10m "${packages[@]}"
}

check_skips() {
    if [[ ${CI-} == true && -n $(rust_skips)$(<"$SKIPPED_FILE") ]]; then
        echo "test: in CI no test may be skipped" >&2
        exit 1
    fi
}

rust_skips() {
    [[ ! -f $LOGS/rust.log ]] || sed -n 's/^.*SKIPPED \(.*: needs .*\)$/\1/p' "$LOGS/rust.log"
}

# Whatever happened: what lints found, the table, what was skipped, the sum.
finish() {
    local status=$?
    trap - EXIT
    trap '' INT TERM HUP
    end_stage "$status"
    local group
    for group in "${running[@]}"; do
        kill -TERM -- "-$group" 2>/dev/null || true
    done
    [[ $status == 0 ]] || remove_leftovers
    rust_skips >>"$SKIPPED_FILE"
    print_failed_lints
    printf '\n== Stages\n'
    cat "$LOGS/lints" 2>/dev/null || true
    print_stages
    [[ ! -s $SKIPPED_FILE ]] || printf '\n== Skipped\n'
    sed 's/^/skipped: /' "$SKIPPED_FILE"
    printf '\n'
    count
    exit "$status"
}

# Rust's harness takes a test that skipped itself for one that passed.
count() {
    local rust_skipped
    rust_skipped=$(rust_skips | wc -l)
    {
        cat "$COUNTS_FILE"
        [[ ! -f $LOGS/rust.log ]] || sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored.*/\1 \2 \3/p' "$LOGS/rust.log"
    } | awk -v rust="$rust_skipped" '{ passed += $1; failed += $2; skipped += $3 }
        END { printf "%d passed, %d failed, %d skipped\n", passed - rust, failed, skipped + rust }'
}

main "$@"
