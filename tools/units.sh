#!/usr/bin/env bash
# The systemd units under a real systemd: `make install` in a container over this
# machine's files, then what docs/operate.md has people type.
#
#   tools/units.sh        (needs root and systemd-nspawn, installed if it is missing)
#
# It shows what no other test does: that the units' sandboxes let the programs work,
# that readiness and take-over are told to systemd, and that services come back.
#
# Guarantees: the machine's files are seen through an overlay and not changed; mounts
# and processes end with this program, also after a failure or Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly MACHINE=guideway-units-$$
readonly BOOT_SECONDS=30

main() {
    [[ $(id -u) == 0 ]] || die "needs root: it starts a container"
    command -v systemd-nspawn >/dev/null || apt-get install -q -y --no-install-recommends systemd-container >/dev/null ||
        die "needs systemd-nspawn, and apt-get could not install it"
    folder=$(mktemp -d "${UNITS_DIR:-/var/tmp}/guideway-units.XXXXXX")
    trap clean EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP

    boot
    inside systemd-sysusers 2>/dev/null
    what_is_the_controllers
    inside systemctl daemon-reload
    an_interface_that_comes_after_the_services_is_taken
    a_reload_is_a_take_over
    each_service_comes_back after a SIGKILL
    a_restart_of_the_controller_leaves_the_forwarder
    a_restart_by_the_api_is_a_take_over
    say "as expected"
}

die() {
    printf 'units: %s\n' "$*" >&2
    exit 1
}

say() { printf '== units: %s\n' "$*"; }

clean() {
    if [[ -n ${container-} ]]; then
        kill -TERM "$container" 2>/dev/null || true
        wait "$container" 2>/dev/null || true
    fi
    umount "$folder/root" "$folder/layers" 2>/dev/null || true
    rm -rf --one-file-system "$folder"
}

# An overlay cannot lie on another, so what is changed goes to memory.
boot() {
    say "a systemd in a container"
    mkdir "$folder/root" "$folder/layers"
    mount -t tmpfs tmpfs "$folder/layers"
    mkdir "$folder/layers/upper" "$folder/layers/work"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/layers/upper,workdir=$folder/layers/work" "$folder/root"
    make install DESTDIR="$folder/root" >/dev/null
    head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$folder/root/etc/machine-id"
    # Its own filter of system calls keeps eBPF from what is inside.
    systemd-nspawn -q -D "$folder/root" -M "$MACHINE" --boot --register=no --keep-unit --private-network \
        --capability=all --system-call-filter='bpf perf_event_open' --console=pipe </dev/null >"$folder/console.log" 2>&1 &
    container=$!
    until_true "systemd to come up" inside systemctl is-system-running --wait
}

# The secret as tools/install.sh makes one where nothing is staged for a package, and the
# config the group's to read, as there.
what_is_the_controllers() {
    head -c 32 /dev/urandom >"$folder/root/etc/guideway/cluster.key"
    inside chown root:guideway /etc/guideway/cluster.key /etc/guideway/guideway.yaml
    inside chmod 0640 /etc/guideway/cluster.key
}

# Runs a command in the container.
inside() {
    local init
    init=$(pgrep -P "$container" | head -1)
    [[ -n $init ]] && nsenter -t "$init" -a "$@"
}

until_true() {
    local what=$1 end=$((SECONDS + BOOT_SECONDS))
    shift
    until "$@" >"$folder/said" 2>&1; do
        if ((SECONDS >= end)); then
            cat "$folder/said" >&2
            inside journalctl --no-pager -n 40 -u 'guideway-*' >&2 || true
            die "waited $BOOT_SECONDS s for $what"
        fi
        sleep 0.2
    done
}

# It exits with 1 where something is wrong.
says() { grep -q "$1" <<<"$(inside guideway doctor || true)"; }

main_pid() { inside systemctl show --value -p MainPID "$1"; }

is_another() { [[ $(main_pid "$1") != "$2" && $(main_pid "$1") != 0 ]]; }

an_interface_that_comes_after_the_services_is_taken() {
    say "services start; their interface comes after them"
    until_true "the services to start" inside systemctl enable --now guideway-forwarder guideway-speaker guideway-controller
    for service in forwarder speaker controller; do
        inside systemctl is-active -q "guideway-$service" || die "guideway-$service does not run"
    done
    until_true "the plan to be refused" says 'there is no interface eth1'
    inside ip link add eth1 type veth peer name far
    inside ip address add 10.0.0.1/24 dev eth1
    inside ip link set eth1 up
    inside ip link set far up
    until_true "the plan to be taken" says '^ok *eth1 .*af_packet'
    ! says 'refuses' || die "the refusal is still told: $(inside guideway doctor)"
}

a_reload_is_a_take_over() {
    say "systemctl reload guideway-forwarder"
    local before
    before=$(main_pid guideway-forwarder)
    inside systemctl reload guideway-forwarder
    until_true "systemd to have the successor" is_another guideway-forwarder "$before"
    until_true "the take-over to be told" says "took over from process $before"
}

each_service_comes_back() {
    say "each service comes back $*"
    local service before
    for service in forwarder speaker controller; do
        before=$(main_pid "guideway-$service")
        inside systemctl kill -s KILL --kill-who=main "guideway-$service"
        until_true "guideway-$service to run again" is_another "guideway-$service" "$before"
        until_true "guideway-$service to be active" inside systemctl is-active -q "guideway-$service"
    done
    until_true "all to answer" says '^ok *eth1 .*af_packet'
}

a_restart_of_the_controller_leaves_the_forwarder() {
    say "systemctl restart guideway-controller"
    local before
    before=$(main_pid guideway-forwarder)
    inside systemctl restart guideway-controller
    until_true "the controller to answer" says '^ok *controller'
    [[ $(main_pid guideway-forwarder) == "$before" ]] || die "the forwarder was restarted, too"
}

# What `guideway fleet restart` requests of each machine.
a_restart_by_the_api_is_a_take_over() {
    say "a restart by the API"
    local before answer
    before=$(main_pid guideway-forwarder)
    answer=$(inside curl -sS --unix-socket /run/guideway/controller/controller.sock \
        --json '{}' http://localhost/guideway.controller.v1.Controller/Restart)
    grep -q forwarderVersion <<<"$answer" || die "the API answered: $answer"
    until_true "systemd to have the successor" is_another guideway-forwarder "$before"
    until_true "the controller to answer" says '^ok *controller'
    until_true "the take-over to be told" says "took over from process $before"
}

main "$@"
