# Functions for tools/test.sh and tools/nightly.sh: stages, a table of their durations, and the
# clean-up after an interruption. To be sourced.

stage_rows=
stage_name=

# stage NAME COMMAND...: a failure ends the script by `set -e`; end_stage in its
# EXIT trap then enters the row.
stage() {
    stage_name=$1 stage_begun=$SECONDS
    printf '\n== %s\n' "$1"
    "${@:2}"
    end_stage 0
}

# end_stage STATUS of the one under way, if there is one.
end_stage() {
    local result=passed
    [[ -n $stage_name ]] || return 0
    [[ $1 == 0 ]] || result=FAILED
    stage_rows+=$(row "$stage_name" $((SECONDS - stage_begun)) "$result")$'\n'
    stage_name=
}

row() { printf '%-20s %6d s  %s\n' "$@"; }

print_stages() {
    printf '%s' "$stage_rows"
    row all $SECONDS ""
}

# share NICE: how much of the processors the script's session gets. Where the kernel shares
# them by sessions (autogroup), nice by itself says nothing to other sessions.
share() {
    renice -n "$1" -p $$ >/dev/null 2>&1 || true
    { echo "$1" >/proc/self/autogroup; } 2>/dev/null || true
}

# Namespaces and directories of test programs that were killed: their names have its process id.
remove_leftovers() {
    local namespace directory pid
    for namespace in $(ls /run/netns 2>/dev/null); do
        pid=$(sed -n -E 's/^gw-(test|line)-([0-9]+)-.*$/\2/p; s/^gw-test-.*-([0-9]+)\..*$/\1/p' <<<"$namespace")
        if [[ -n $pid && ! -e /proc/$pid ]]; then
            ip netns pids "$namespace" | xargs -r kill -KILL 2>/dev/null || true
            ip netns del "$namespace" || true
        fi
    done
    for directory in {/dev/shm,/tmp}/gw-test-*; do # anybody may make one, of any name
        if [[ $directory =~ /gw-test-([0-9]+)-[0-9]+$ && ! -e /proc/${BASH_REMATCH[1]} ]]; then
            rm -rf "$directory"
        fi
    done
}
