# Functions for tools that need a system of their own: a bare Debian, and containers with a real
# systemd. All of them end with the program that started them, also after a failure or Ctrl-C.
#
# To be sourced by a program that has set -euo pipefail, and `readonly NAME`, which begins its
# messages.

readonly WAIT_SECONDS=${WAIT_SECONDS:-30}

die() {
    printf '%s: %s\n' "$NAME" "$*" >&2
    exit 1
}

say() { printf '== %s: %s\n' "$NAME" "$*"; }

# need COMMAND PACKAGE
need() {
    command -v "$1" >/dev/null || apt-get install -q -y --no-install-recommends "$2" >/dev/null ||
        die "needs $1, and apt-get could not install it"
}

# Where this machine has its packages from, if it is a Debian.
debian_mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' \
        'Label: Debian' 2>/dev/null | head -n 1 || true
}

# debian SUITE ROOT PACKAGES: a bare one, from there; else from debootstrap's own mirror.
debian() {
    local mirror
    need debootstrap debootstrap
    mirror=$(debian_mirror)
    if ! debootstrap --variant=minbase --include="$3" "$1" "$2" ${mirror:+"$mirror"} >"$2.log" 2>&1; then
        tail -n 20 "$2.log" >&2
        die "debootstrap failed; its last words stand above"
    fi
}

# Makes $folder, and has `clean_up` called at the end.
begin() {
    [[ $(id -u) == 0 ]] || die "needs root: it starts a container"
    need systemd-nspawn systemd-container
    folder=$(mktemp -d "$1/guideway-$NAME.XXXXXX")
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# boot ROOT [options of systemd-nspawn]
boot() {
    head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$1/etc/machine-id"
    # Its own filter of system calls keeps eBPF from what is inside.
    systemd-nspawn -q -D "$1" -M "guideway-$NAME-$$" --boot --register=no --keep-unit "${@:2}" \
        --capability=all --system-call-filter='bpf perf_event_open' --console=pipe </dev/null >"$folder/console.log" 2>&1 &
    container=$!
    until_true "systemd to come up" is_up
}

# Degraded: a unit of the system's own has no use for a container.
is_up() { [[ $(inside systemctl is-system-running --wait) == @(running|degraded) ]]; }

shut_down() {
    [[ -n ${container-} ]] || return 0
    kill -TERM "$container" 2>/dev/null || true
    wait "$container" 2>/dev/null || true
    container=
}

# Runs a command in the container.
inside() {
    local init
    init=$(pgrep -P "$container" | head -1)
    [[ -n $init ]] && nsenter -t "$init" -a "$@"
}

until_true() {
    local what=$1 end=$((SECONDS + WAIT_SECONDS))
    shift
    until "$@" >"$folder/said" 2>&1; do
        if ((SECONDS >= end)); then
            cat "$folder/said" >&2
            [[ -z ${container-} ]] || inside sh -c "guideway doctor; ip -br address; journalctl --no-pager -n 20 -u 'guideway-*'" >&2 || true
            die "waited $WAIT_SECONDS s for $what"
        fi
        sleep 0.2
    done
}

# It exits with 1 where something is wrong.
doctor_says() { grep -q "$1" <<<"$(inside guideway doctor || true)"; }

main_pid() { inside systemctl show --value -p MainPID "$1"; }

is_another() { [[ $(main_pid "$1") != "$2" && $(main_pid "$1") != 0 ]]; }
