#!/usr/bin/env bash
# Tests the output of `make packages` in use, on a bare Debian 12 and 13 with a real systemd:
#
#   tools/packages-test.sh [bookworm] [trixie]      (no argument: both; root, network)
#
# - two builds of one commit in two folders give the same bytes
# - after the installation nothing runs; with a config it forwards
# - an upgrade and a downgrade under load take over, and clients' connections do not break
# - after a removal none of it runs, and configs and state stay; after a purge nothing is left
# - the agent's program is detached from its interface when its package is removed
# - the rpms install into a separate tree, and verify
# - the images' programs run with the contents of the images alone; started as docs/containers.md
#   says, they forward
#
# PACKAGES names a folder with earlier builds, in this/ and next/, to use instead of building.
#
# Guarantees: the machine's own network and files are not touched; network namespaces,
# containers and folders are removed, also after a failure or Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly NAME=packages
# All of it is of one commit, also when another one comes meanwhile.
commit=$(git rev-parse HEAD)
readonly commit
. tools/container.sh

readonly VIP=203.0.113.10
readonly INIT=(init --vip "$VIP" --ports 80 --servers 10.0.0.11 --interface eth1 --address 10.0.0.1)
readonly LOAD_SECONDS=40
# Sorts behind the tree's own version.
readonly NEXT=99.0.0
net=gw-test-$$

main() {
    local suites=("$@") suite
    ((${#suites[@]})) || suites=(bookworm trixie)
    begin "${PACKAGES_DIR:-/var/tmp}"
    [[ -z $(git status --porcelain) ]] || say "what is not committed is not tried"
    need nginx nginx-light
    need wrk wrk
    need rpm rpm
    need podman podman
    need runc runc
    need python3 python3
    python3 -c 'import yaml' 2>/dev/null || apt-get install -q -y --no-install-recommends python3-yaml >/dev/null
    build
    images_run
    containers_forward
    for suite in "${suites[@]}"; do
        debian "$suite" "$folder/$suite" systemd,systemd-sysv,dbus,iproute2
        rpms_install "$suite"
        a_network
        boot "$folder/$suite" --network-namespace-path="/run/netns/$net-lb" --bind-ro="$folder/packages:/packages"
        installed_nothing_runs
        with_a_config_it_forwards
        an_upgrade_under_load_takes_over
        removed_and_purged
        the_agent_comes_and_goes
        shut_down
        no_network
        rm -rf --one-file-system "${folder:?}/$suite"
    done
    say "as expected: ${suites[*]}"
}

clean_up() {
    shut_down
    local id
    if [[ -n ${CONTAINERS_CONF-} ]]; then
        for id in $(podman ps -a -q 2>/dev/null); do
            podman logs --names "$id" 2>&1 | tail -n 20
        done
        podman rm -f -a >/dev/null 2>&1 || true
    fi
    no_network
    rm -rf --one-file-system "$folder"
}

# The tree's version from two clones, in folders whose names are of different lengths, and the
# next version.
build() {
    local clone
    if [[ -n ${PACKAGES-} ]]; then
        cp -r "$PACKAGES" "$folder/packages"
        return
    fi
    say "two builds of one commit"
    for clone in a another; do
        git clone -q --no-hardlinks . "$folder/$clone/guideway"
        git -C "$folder/$clone/guideway" checkout -q --detach "$commit"
        make -C "$folder/$clone/guideway" packages OUT="$folder/$clone/dist" >"$folder/build.log" 2>&1 || build_failed
    done
    diff "$folder/a/dist/SHA256SUMS" "$folder/another/dist/SHA256SUMS" || die "two builds of one commit differ"
    rm -rf "$folder/a/guideway"
    make -C "$folder/another/guideway" packages OUT="$folder/packages/next" VERSION=$NEXT >"$folder/build.log" 2>&1 || build_failed
    rm -rf "$folder/another"
    mkdir -p "$folder/packages"
    mv "$folder/a/dist" "$folder/packages/this"
    rmdir "$folder/a"
}

build_failed() {
    tail -n 40 "$folder/build.log" >&2
    die "make packages failed"
}

# What is in a layout, unpacked, is all that its programs have.
images_run() {
    local name layer program
    say "programs of the images run in them"
    for name in guideway guideway-agent; do
        mkdir -p "$folder/image/$name" "$folder/image/tar"
        tar -xf "$folder"/packages/this/$name"_"*.image.tar -C "$folder/image/tar"
        for layer in "$folder"/image/tar/*.tar.gz; do
            tar -xzf "$layer" -C "$folder/image/$name"
        done
        rm -rf "$folder/image/tar"
        for program in "$folder/image/$name"/usr/bin/*; do
            chroot "$folder/image/$name" "/usr/bin/${program##*/}" --version
        done
    done
    rm -rf "$folder/image"
}

# What docs/containers.md has people type and its compose files, with folders in the place of
# the machine's.
containers_forward() {
    say "containers as in docs/containers.md"
    local machine
    a_network
    serve_pages
    export CONTAINERS_STORAGE_CONF=$folder/storage.conf CONTAINERS_CONF=$folder/containers.conf
    printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' "$folder/podman" "$folder/podman.run" >"$CONTAINERS_STORAGE_CONF"
    # Less than podman's own limits, which a machine's root may not be allowed to set; and
    # crun knows no machine with both kinds of cgroups.
    cat >"$CONTAINERS_CONF" <<'END'
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
END
    podman load -q -i "$folder"/packages/this/guideway_*.image.tar
    podman load -q -i "$folder"/packages/this/guideway-agent_*.image.tar
    for machine in lb backend; do
        install -d "$folder/$machine/etc/guideway"
    done
    dpkg-deb -x "$folder"/packages/this/guideway_*.deb "$folder/unpacked"
    "$folder/unpacked/usr/bin/guideway" "${INIT[@]}" --file "$folder/lb/etc/guideway/guideway.yaml" >/dev/null
    sed -i 's#{name: c1}#{name: c1, secret_file: /etc/guideway/cluster.key}#' "$folder/lb/etc/guideway/guideway.yaml"
    agent_config >"$folder/backend/etc/guideway/agent.yaml"
    bash -euo pipefail -c "$(sed -n -E "s#^    ((install -d|chgrp|test -e) )#\1#; T; s#/(etc|run|var/lib)/guideway#$folder/lb&#g; p" docs/containers.md)"
    install -d "$folder/backend/run/guideway/agent"
    compose lb 1
    compose backend 2
    until_answered
    podman rm -f -a >/dev/null
    no_network
}

# compose MACHINE NUMBER: starts that one of the page's files, in the machine's network. Debian's
# podman-compose knows neither group_add nor pid: so each service by podman itself.
compose() {
    local -a run
    while read -r -a run; do
        nsenter --net="/run/netns/$net-$1" podman run -d "${run[@]}" >/dev/null
    done < <(awk -v number="$2" '/^```yaml$/ { block++; inside = 1; next } /^```$/ { inside = 0 } inside && block == number' \
        docs/containers.md | sed -E "s#/(etc|run|var/lib)/guideway[a-z-]*:/#$folder/$1&#g" | python3 -c "$PODMAN_RUN")
}

# Options of `podman run` for each service; a key without one is an error.
readonly PODMAN_RUN='
import json, sys, yaml
options = {"network_mode": "network", "pid": "pid", "cap_drop": "cap-drop", "cap_add": "cap-add", "devices": "device",
           "group_add": "group-add", "security_opt": "security-opt", "user": "user", "volumes": "volume", "restart": "restart"}
for name, service in yaml.safe_load(sys.stdin)["services"].items():
    image, command = service.pop("image"), service.pop("command", [])
    entrypoint = service.pop("entrypoint", None)
    line = ["--name", name]
    if entrypoint:
        line, command = line + ["--entrypoint", entrypoint[0]], entrypoint[1:] + command
    for key, value in service.items():
        line += ["--%s=%s" % (options[key], one) for one in (value if isinstance(value, list) else [value])]
    print(*line, image, *command)
'

until_answered() { until_true "an answer of the VIP" ip netns exec "$net-client" curl -sS -m 1 "http://$VIP/"; }

# Their scripts run, too: in a tree of its own, with the shell of that Debian.
rpms_install() {
    say "$1: rpms in a tree of their own"
    local tree=$folder/rpm name
    cp -a "$folder/$1" "$tree"
    rpm --root "$tree" --initdb
    rpm --root "$tree" --nodeps -i "$folder"/packages/this/*.rpm >"$folder/said" 2>&1 || die "rpm -i: $(<"$folder/said")"
    [[ -s $tree/etc/guideway/cluster.key ]] || die "the rpm made no secret: $(<"$folder/said")"
    for name in guideway guideway-agent guideway-lab guideway-debug; do
        # The config is the controller's to read since its group is there.
        rpm --root "$tree" --nodeps --nogroup -V "$name" || die "rpm does not verify $name"
    done
    echo '# changed' >>"$tree/etc/guideway/guideway.yaml"
    rpm --root "$tree" --nodeps -U "$folder"/packages/next/*.rpm >"$folder/said" 2>&1 || die "rpm -U: $(<"$folder/said")"
    grep -q '# changed' "$tree/etc/guideway/guideway.yaml" || die "the rpm's upgrade replaced a changed config"
    rpm --root "$tree" -e guideway-lab guideway guideway-agent guideway-debug >"$folder/said" 2>&1 || die "rpm -e: $(<"$folder/said")"
    [[ ! -e $tree/usr/bin/guideway && -s $tree/etc/guideway/cluster.key ]] || die "the rpm's removal left a program or took the secret"
    rm -rf --one-file-system "$tree"
}

# Three machines at a switch; the load balancer's is the container's.
a_network() {
    local machine address
    ip netns add "$net-switch"
    ip -n "$net-switch" link add switch up type bridge
    while read -r machine address; do
        ip netns add "$net-$machine"
        ip -n "$net-$machine" link set lo up
        ip -n "$net-$machine" link add eth1 type veth peer name "$machine" netns "$net-switch"
        ip -n "$net-switch" link set "$machine" master switch up
        ip -n "$net-$machine" address add "$address/24" dev eth1
        ip -n "$net-$machine" link set eth1 up
    done <<<$'lb 10.0.0.1\nbackend 10.0.0.11\nclient 10.0.0.100'
    ip -n "$net-client" route add "$VIP" via 10.0.0.1
    ip -n "$net-backend" address add "$VIP/32" dev lo
}

no_network() {
    local namespace
    for namespace in $(ip netns list | grep -o "^$net-[a-z]*"); do
        ip netns pids "$namespace" | xargs -r kill -KILL 2>/dev/null || true
        ip netns del "$namespace"
    done
}

# A web server on the backend.
serve_pages() {
    mkdir -p "$folder/www"
    cat >"$folder/nginx.conf" <<END
daemon off; pid $folder/nginx.pid; error_log $folder/nginx.log;
events {}
http { access_log off; server { listen 80; keepalive_requests 1000000; location / { return 200 "hello"; } } }
END
    ip netns exec "$net-backend" nginx -p "$folder/www" -c "$folder/nginx.conf" &
    disown
}

# And the agent of the package, outside of any container.
serve() {
    serve_pages
    mkdir -p "$folder/agent"
    dpkg-deb -x "$folder"/packages/this/guideway-agent_*.deb "$folder/agent"
    agent_config >"$folder/agent.yaml"
    ip netns exec "$net-backend" "$folder/agent/usr/bin/guideway-agent" --config "$folder/agent.yaml" >"$folder/agent.log" 2>&1 &
    disown
}

agent_config() {
    cat <<END
interface: eth1
load_balancers: [10.0.0.1]
vips: [$VIP]
pin: off
END
}

package() { inside sh -c "DEBIAN_FRONTEND=noninteractive dpkg $1"; }

installed_nothing_runs() {
    say "installed, nothing runs"
    package "-i /packages/this/guideway_*.deb" >"$folder/said"
    grep -q 'made /etc/guideway/cluster.key' "$folder/said" || die "no secret was made: $(<"$folder/said")"
    local service
    for service in forwarder speaker controller probe; do
        ! inside systemctl is-active -q "guideway-$service" || die "guideway-$service runs"
        ! inside systemctl is-enabled -q "guideway-$service" || die "guideway-$service is enabled"
    done
    [[ $(inside stat -c '%U:%G %a' /etc/guideway/guideway.yaml /etc/guideway/cluster.key | uniq) == 'root:guideway 640' ]] ||
        die "config or secret are not root's and the controller's"
    inside guideway config check /etc/guideway/guideway.yaml >/dev/null || die "the packaged config is refused"
    inside guideway --version | grep -q "commit ${commit:0:12} (" || die "--version says $(inside guideway --version)"
    inside test -s /usr/share/man/man1/guideway-drain-backend.1.gz -a -s /usr/share/man/man1/guideway-forwarder.1.gz -a \
        -s /usr/share/bash-completion/completions/guideway.bash -a -s /usr/share/zsh/vendor-completions/_guideway-forwarder ||
        die "a man page or completion is missing"
}

with_a_config_it_forwards() {
    say "with a config it forwards"
    serve
    inside guideway "${INIT[@]}" >/dev/null
    [[ $(inside stat -c '%U:%G %a' /etc/guideway/guideway.yaml) == 'root:guideway 640' ]] || die "the config is not root's and the controller's"
    inside systemctl enable -q --now guideway-forwarder guideway-speaker guideway-controller
    until_answered
}

an_upgrade_under_load_takes_over() {
    say "an upgrade and a downgrade under load"
    ip netns exec "$net-client" wrk -t 1 -c 20 -d "$LOAD_SECONDS" "http://$VIP/" >"$folder/wrk.log" 2>&1 &
    local wrk=$!
    sleep 3
    replaced_by next $NEXT
    sleep 3
    replaced_by this "$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)"
    wait $wrk || die "wrk failed: $(<"$folder/wrk.log")"
    grep -E 'requests in' "$folder/wrk.log" || die "no request: $(<"$folder/wrk.log")"
    ! grep -E 'Socket errors|Non-2xx' "$folder/wrk.log" || die "requests failed: $(<"$folder/wrk.log")"
}

# replaced_by FOLDER VERSION
replaced_by() {
    local before
    before=$(main_pid guideway-forwarder)
    package "-i /packages/$1/guideway_*.deb" >"$folder/said" 2>&1 || die "dpkg: $(<"$folder/said")"
    grep -q 'the speaker goes on as the version before' "$folder/said" || die "it does not tell of the speaker: $(<"$folder/said")"
    until_true "systemd to have the successor" is_another guideway-forwarder "$before"
    until_true "the take-over to be told" doctor_says "took over from process $before"
    inside guideway-forwarder --version | grep -q "^guideway-forwarder $2" || die "it is $(inside guideway-forwarder --version)"
}

removed_and_purged() {
    say "removed and purged"
    package "-r guideway" >"$folder/said"
    grep -q 'stay' "$folder/said" || die "it does not tell what stays: $(<"$folder/said")"
    ! inside sh -c 'ls -l /proc/[0-9]*/exe 2>&1' | grep guideway || die "something of it still runs"
    inside test ! -e /usr/bin/guideway -a -s /etc/guideway/cluster.key -a -s /etc/guideway/guideway.yaml -a -d /var/lib/guideway-forwarder ||
        die "a program is left, or config, secret or state are gone"
    package "-P guideway" >"$folder/said"
    grep -q 'removed the cluster.s secret' "$folder/said" || die "it does not tell what it removed: $(<"$folder/said")"
    inside test ! -e /etc/guideway -a ! -e /var/lib/guideway -a ! -e /var/lib/guideway-forwarder -a ! -e /var/lib/guideway-speaker ||
        die "left behind: $(inside sh -c 'ls -d /etc/guideway/* /var/lib/guideway*' 2>&1)"
}

the_agent_comes_and_goes() {
    say "the agent's package"
    package "-i /packages/this/guideway-agent_*.deb" >/dev/null
    ! inside systemctl is-active -q guideway-agent || die "the agent runs"
    inside sh -c 'mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf'
    inside sed -i 's/eth0/eth1/' /etc/guideway/agent.yaml
    inside systemctl enable -q --now guideway-agent
    package "-i /packages/next/guideway-agent_*.deb" >/dev/null
    until_true "the agent to run again" inside systemctl is-active -q guideway-agent
    inside guideway-agent status | grep -q "$NEXT" || die "it is not the next one: $(inside guideway-agent status)"
    inside test -e /sys/fs/bpf/guideway-agent || die "the agent pinned no program"
    package "-r guideway-agent" >"$folder/said" 2>&1 || die "dpkg: $(<"$folder/said")"
    [[ -z $(inside ls /sys/fs/bpf/guideway-agent) ]] || die "the agent's program is still there: $(<"$folder/said")"
    package "-P guideway-agent" >/dev/null
    inside test ! -e /etc/guideway || die "left behind: $(inside ls /etc/guideway)"
}

main "$@"
