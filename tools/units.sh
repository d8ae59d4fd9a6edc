#!/usr/bin/env bash
# Tests the systemd units under a real systemd: runs `make install` in a container on top of
# this machine's files, then the commands of docs/operate.md.
#
#   tools/units.sh        (needs root and systemd-nspawn, installed if it is missing)
#
# `make vms SUITES=units` does the same in a machine of its own, whose kernel boots each time.
#
# Only this test shows that the units' sandboxes let the programs work, that readiness and
# take-over are reported to systemd, and that services are restarted.
#
# Guarantees: the machine's files are used through an overlay and not changed; mounts and
# processes end with this program, also after a failure or Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly NAME=units
. tools/container.sh

main() {
    if [[ ${1-} == --in-machine ]]; then
        in_machine
        return
    fi
    begin "${UNITS_DIR:-/var/tmp}"
    boot_installed
    a_load_balancer_runs
    say "guideway-agent setup, a reboot, and setup --undo"
    mount_bpf
    a_server_is_set_up
    shut_down
    boot "$folder/root" --private-network
    mount_bpf
    a_server_was_set_up_for_good
    say "as expected"
}

# One step for each boot of a machine that is ours: what runs there comes back by itself.
in_machine() {
    local state=/var/lib/guideway-units
    inside() { "$@"; }
    folder=$(mktemp -d) container=$$
    mkdir -p "$state"
    if [[ ! -e $state/runs ]]; then
        make install >/dev/null
        a_load_balancer_runs
        interfaces_that_stay
        touch "$state/runs"
        say "a reboot"
        sync
        systemctl reboot
    elif [[ ! -e $state/is_set_up ]]; then
        systemctl is-active -q links || die "the interfaces do not come back: $(systemctl status links)"
        until_true "the load balancer to run after a reboot" doctor_says '^ok *eth1 .*af_packet'
        each_service_comes_back after a reboot and a SIGKILL
        say "guideway-agent setup, and a reboot"
        a_server_is_set_up
        touch "$state/is_set_up"
        sync
        systemctl reboot
    else
        say "after it, and setup --undo"
        a_server_was_set_up_for_good
        say "as expected"
        systemctl poweroff
    fi
}

# As what configures a machine's network does, at each boot.
interfaces_that_stay() {
    cat >/etc/systemd/system/links.service <<'END'
[Unit]
Before=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip link add eth1 type veth peer name far
ExecStart=ip address add 10.0.0.1/24 dev eth1
ExecStart=ip link set eth1 up
ExecStart=ip link set far up
[Install]
WantedBy=multi-user.target
END
    systemctl enable -q links
}

a_load_balancer_runs() {
    inside env SYSUSERS=/usr/local/lib/sysusers.d TMPFILES=/usr/local/lib/tmpfiles.d sh /usr/local/share/guideway/settle.sh
    an_interface_that_comes_after_the_services_is_taken
    a_reload_is_a_take_over
    each_service_comes_back after a SIGKILL
    a_restart_of_the_controller_leaves_the_forwarder
    a_restart_by_the_api_is_a_take_over
}

clean_up() {
    shut_down
    umount "$folder/root" "$folder/layers" 2>/dev/null || true
    rm -rf --one-file-system "$folder"
}

# An overlay cannot lie on another, so what is changed goes to memory.
boot_installed() {
    say "a systemd in a container"
    mkdir "$folder/root" "$folder/layers"
    mount -t tmpfs tmpfs "$folder/layers"
    mkdir "$folder/layers/upper" "$folder/layers/work"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/layers/upper,workdir=$folder/layers/work" "$folder/root"
    make install DESTDIR="$folder/root" >/dev/null
    boot "$folder/root" --private-network
}

an_interface_that_comes_after_the_services_is_taken() {
    say "services start; their interface comes after them"
    until_true "the services to start" inside systemctl enable --now guideway-forwarder guideway-speaker guideway-controller
    for service in forwarder speaker controller; do
        inside systemctl is-active -q "guideway-$service" || die "guideway-$service does not run"
    done
    until_true "the plan to be refused" doctor_says 'there is no interface eth1'
    inside ip link add eth1 type veth peer name far
    inside ip address add 10.0.0.1/24 dev eth1
    inside ip link set eth1 up
    inside ip link set far up
    until_true "the plan to be taken" doctor_says '^ok *eth1 .*af_packet'
    ! doctor_says 'refuses' || die "the refusal is still told: $(inside guideway doctor)"
}

a_reload_is_a_take_over() {
    say "systemctl reload guideway-forwarder"
    local before
    before=$(main_pid guideway-forwarder)
    inside systemctl reload guideway-forwarder
    until_true "systemd to have the successor" is_another guideway-forwarder "$before"
    until_true "the take-over to be told" doctor_says "took over from process $before"
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
    until_true "all to answer" doctor_says '^ok *eth1 .*af_packet'
}

a_restart_of_the_controller_leaves_the_forwarder() {
    say "systemctl restart guideway-controller"
    local before
    before=$(main_pid guideway-forwarder)
    inside systemctl restart guideway-controller
    until_true "the controller to answer" doctor_says '^ok *controller'
    [[ $(main_pid guideway-forwarder) == "$before" ]] || die "the forwarder was restarted, too"
}

# What `guideway fleet restart` requests of each machine.
a_restart_by_the_api_is_a_take_over() {
    say "a restart by the API"
    local before answer
    before=$(main_pid guideway-forwarder)
    answer=$(inside curl -sS --unix-socket /run/guideway/controller/controller.sock \
        --json '{}' http://localhost/guideway.controller.v1.Controller/Restart)
    grep -q forwarder_version <<<"$answer" || die "the API answered: $answer"
    until_true "systemd to have the successor" is_another guideway-forwarder "$before"
    until_true "the controller to answer" doctor_says '^ok *controller'
    until_true "the take-over to be told" doctor_says "took over from process $before"
}

# What a config says of a backend.
a_server_is_set_up() {
    inside systemctl disable --now guideway-speaker guideway-forwarder guideway-controller
    inside sh -c 'guideway config backend 10.1.0.11 /etc/guideway/guideway.yaml --interface far | guideway-agent setup --from - --dry-run' >"$folder/said"
    grep -q '^  net.ipv4.conf.all.arp_ignore: 0 to 1$' "$folder/said" || die "a dry run does not say which settings change: $(<"$folder/said")"
    ! has_vip || die "a dry run sets the VIP"
    inside sh -c 'guideway config backend 10.1.0.11 /etc/guideway/guideway.yaml --interface far | guideway-agent setup --from -' >/dev/null ||
        die "it is not set up: $(inside journalctl --no-pager -n 20 -u guideway-agent)"
    inside systemctl is-active -q guideway-agent || die "the agent does not run"
    is_set_up || die "the server is not set up: $(inside ip address show dev lo)"
}

# Kept over a reboot, and taken back.
a_server_was_set_up_for_good() {
    until_true "the server to be set up after a reboot" is_set_up
    inside ip link show far >/dev/null 2>&1 || inside ip link add eth1 type veth peer name far
    until_true "the agent to run after a reboot" inside systemctl is-active -q guideway-agent
    inside guideway-agent setup --undo
    ! has_vip || die "the VIP is left"
    [[ $(inside cat /proc/sys/net/ipv4/conf/all/arp_ignore) == 0 ]] || die "arp_ignore is left"
    ! inside systemctl is-active -q guideway-agent || die "the agent still runs"
    ! inside systemctl is-enabled -q guideway-backend 2>/dev/null || die "the next boot would set it up"
}

# What a machine has, and a container lacks.
mount_bpf() { inside sh -ec 'mount -o remount,rw /sys; mkdir -p /sys/fs/bpf; mount -t bpf bpf /sys/fs/bpf'; }

is_set_up() {
    has_vip && [[ $(inside cat /proc/sys/net/ipv4/conf/all/arp_ignore) == 1 ]] &&
        inside nft list table inet guideway | grep -q 'maxseg size set 1364$'
}

has_vip() { inside ip -4 address show dev lo | grep -q ' 203.0.113.10/32 '; }

main "$@"
