#!/usr/bin/env bash
# Runs the tests that `make check` leaves out, in stages of at most 40 minutes; those in emulated
# machines may take hours.
#
#   tools/nightly.sh [stage ...]        (no argument: all; `core`: see below)
#
# Results are kept for each commit, in .cache/nightly/COMMIT/STAGE.{log,result,seconds}. A stage
# that passed for this commit is not run again, so an interrupted run continues where it
# stopped. With uncommitted changes nothing is kept. At the end there is a table of all stages;
# the exit status is 0 if all requested ones have passed.
#
# Ctrl-C ends the current stage, and removes what it created.
#
#   release       products built as they are installed
#   labs          every scenario, with the variants that make test leaves out
#   labs_frr      every scenario with the second router, its tests under -race
#   race          all other Go tests under -race, those of BGP with both routers
#   compilers     the eBPF programs by every clang that apt has
#   browser       the console in Chromium, with a lab behind it
#   changes       ARCHITECTURE's table of changes, applied
#   units         the systemd units (make units)
#   deny          licences, sources and double versions of crates (make deny)
#   upgrade       each process beside that of FORMER, a day older (make upgrade)
#   faults        all faults with BIRD (make faults)      | not in core
#   faults_frr    those that matter to routes, with FRR   |
#   fuzz          every target for FUZZ_SECONDS           |
#   soak          tests in namespaces for SOAK_MINUTES    |
#   fresh_demo    make demo on a bare Debian 13           |
#   fresh_test    make test there                         |
#   packages      what make packages makes, as it is used |
#   vms           other kernels, emulated (make vms)      |
#   vms_sid       a kernel with zero-copy on virtio-net   |
#   vms_labs      scenarios of the lab in such a machine  |
#   vms_netem     those on bad links                      |
#   ipvs          keepalived and IPVS beside, emulated    |
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/stages.sh

readonly MINUTES_MAX=40
# Some six times slower than their own clock (tools/vms.sh).
readonly EMULATED_MINUTES_MAX=400
readonly EMULATED=(vms vms_sid vms_labs vms_netem ipvs)
readonly CORE=(release labs labs_frr race compilers browser changes units deny upgrade)
readonly REST=(faults faults_frr fuzz soak fresh_demo fresh_test packages "${EMULATED[@]}")

stage_release() { make build; }

stage_labs() {
    make build
    GUIDEWAY_NIGHTLY=1 labs
}

stage_labs_frr() {
    make build
    GUIDEWAY_NIGHTLY=1 LAB_ROUTER=frr CGO_ENABLED=1 labs -race
}

# With the share of processors that tools/test.sh gives them.
labs() {
    share -15
    gotest "$@" -p 1 -parallel 99 ./lab/scenarios
}

stage_race() {
    local packages
    mapfile -t packages < <(go list ./... | grep -v '/lab/scenarios$')
    GUIDEWAY_NIGHTLY=1 CGO_ENABLED=1 gotest -race "${packages[@]}"
}

gotest() {
    go build -o .cache/bin/gotest ./tools/gotest
    .cache/bin/gotest -count=1 -timeout "${MINUTES_MAX}m" "$@"
}

stage_compilers() {
    BPF_COMPILERS=$(tools/bpf-compilers.sh all)
    export BPF_COMPILERS
    printf 'with %s\n' "$BPF_COMPILERS"
    cargo test --workspace every_compiler | tee .cache/nightly/compilers
    grep -q '\.\.\. ok$' .cache/nightly/compilers
}

stage_browser() {
    tools/install-deps.sh browser
    make build
    share -15
    gotest -tags browser -run '^TestConsole$' ./lab/scenarios
}

stage_changes() { go test -count=1 -timeout "${MINUTES_MAX}m" -tags nightly ./tools/...; }

stage_units() { make units; }

stage_deny() { make deny; }

# Without FORMER: what was there a day before.
stage_upgrade() {
    local day_before=$(($(git log -1 --format=%ct) - 24 * 3600))
    make upgrade FORMER="${FORMER:-$(git rev-list -1 --min-age=$day_before HEAD)}"
}

stage_faults() { make faults LAB_ROUTER=bird; }

stage_faults_frr() { make faults LAB_ROUTER=frr; }

stage_fuzz() { tools/fuzz.sh "${FUZZ_SECONDS:-120}"; }

stage_soak() { make soak MINUTES="${SOAK_MINUTES:-30}" LOAD=2; }

stage_fresh_demo() { make fresh FRESH=demo; }

stage_fresh_test() { make fresh FRESH=test; }

stage_packages() { make packages-test; }

stage_vms() { make vms SUITES="bookworm trixie units"; }

stage_vms_sid() { make vms SUITES=sid; }

stage_vms_labs() { make vms SUITES=labs; }

stage_vms_netem() { make vms SUITES=netem; }

stage_ipvs() { make vms SUITES=ipvs; }

main() {
    if [[ ${1-} == --stage ]]; then
        "stage_$2"
        return
    fi
    local wanted=("$@") name
    ((${#wanted[@]})) || wanted=("${CORE[@]}" "${REST[@]}")
    [[ ${wanted[*]} != core ]] || wanted=("${CORE[@]}")
    for name in "${wanted[@]}"; do
        [[ " ${CORE[*]} ${REST[*]} " == *" $name "* ]] || {
            echo "nightly: unknown stage '$name': give some of core ${CORE[*]} ${REST[*]}" >&2
            exit 2
        }
    done
    results=.cache/nightly/$(git rev-parse --short HEAD)
    if [[ -n $(git status --porcelain) ]]; then
        results+=-changed
        rm -rf "$results"
    fi
    mkdir -p "$results"
    trap 'interrupted' INT TERM HUP
    for name in "${wanted[@]}"; do
        run "$name"
    done
    table
    for name in "${wanted[@]}"; do
        [[ $(result "$name") == passed ]] || exit 1
    done
}

result() { cat "$results/$1.result" 2>/dev/null || echo "not run"; }

# run a stage in a process group of its own, unless it has passed.
run() {
    local name=$1 begun=$SECONDS outcome=passed minutes=$MINUTES_MAX
    [[ $(result "$name") != passed ]] || return 0
    [[ " ${EMULATED[*]} " != *" $name "* ]] || minutes=$EMULATED_MINUTES_MAX
    printf '%s == %s: %s\n' "$(date +%T)" "$name" "$results/$name.log"
    setsid "$PWD/tools/nightly.sh" --stage "$name" >"$results/$name.log" 2>&1 </dev/null &
    running=$! running_stage=$name
    while kill -0 "$running" 2>/dev/null; do
        if ((SECONDS - begun > minutes * 60)); then
            end_running
            outcome="more than $minutes min"
        fi
        sleep 1
    done
    wait "$running" || [[ $outcome != passed ]] || outcome=FAILED
    running=
    remove_leftovers
    echo $((SECONDS - begun)) >"$results/$name.seconds"
    echo "$outcome" >"$results/$name.result"
}

# SIGTERM to all of the stage: SIGINT is ignored by what runs in the background.
end_running() {
    local waited
    kill -TERM -- "-$running" 2>/dev/null || true
    for ((waited = 0; waited < 60; waited++)); do
        pgrep -g "$running" >/dev/null || break
        sleep 1
    done
    kill -KILL -- "-$running" 2>/dev/null || true
}

interrupted() {
    trap '' INT TERM HUP
    if [[ -n ${running-} ]]; then
        end_running
        remove_leftovers
        echo interrupted >"$results/$running_stage.result"
    fi
    table
    exit 130
}

table() {
    local name
    printf '\n%-12s %-16s %7s  %s\n' stage result seconds "last line"
    for name in "${CORE[@]}" "${REST[@]}"; do
        printf '%-12s %-16s %7s  %s\n' "$name" "$(result "$name")" \
            "$(cat "$results/$name.seconds" 2>/dev/null || echo -)" \
            "$(grep -v '^\s*$' "$results/$name.log" 2>/dev/null | tail -n 1 | cut -c -100)"
    done
}

main "$@"
