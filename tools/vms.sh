#!/usr/bin/env bash
# Tests everything that depends on the kernel on the kernels of Debian's releases, in emulated
# virtual machines (QEMU's TCG): what works and what is refused, never speed. Needs root, and a
# network for packages.
#
#   tools/vms.sh [suite ...]        bookworm (6.1), trixie (6.12), sid (7.2 or newer); of their tests
#                                   those alone whose row ONLY names, a regular expression
#   tools/vms.sh units              tools/units.sh in a machine with a systemd, which boots three times
#                                   (`make vms SUITES=units`)
#   tools/vms.sh labs | netem | ipvs
#                                   scenarios of the lab with the kernel of trixie and the programs in
#                                   bin/ (`make vms SUITES=labs`): moves, Multipath TCP and clock steps;
#                                   bad links; or keepalived and IPVS beside Guideway
#
#   this machine's root ──9p, read only──► overlay in memory ──► the tests of this checkout, as root
#   .cache/vms/SUITE: vmlinuz, modules ──► booted by an initrd of busybox
#   cables: pairs of its network devices, each joined by a bridge ──► tests that would use veth
#
# Each test has a log, which is printed if the test fails. At the end there is a table: the
# duration of the boot, the number of instructions that the verifier processed, and each test
# with its seconds. Only the kernels in .cache/vms are kept.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly NAME=vms
. tools/container.sh
. tools/stages.sh

readonly KERNELS=$PWD/.cache/vms
# Of the machine. instructions: 2 ns each, so that the timers of programs find a machine that is
# always as quick, however little of this one it gets; one thread here, some six times slower than
# that clock. host: two threads, in a third of the time, on a host with nothing else to do.
readonly CLOCK=${CLOCK:-instructions}
# By its clock a boot takes some 10 s, the tests 10 minutes, with zero-copy 20, a round beside IPVS 10.
export IPVS_ROUNDS=${IPVS_ROUNDS:-1}
readonly TEST_SECONDS=900 LAB_SECONDS=$((3600 * IPVS_ROUNDS))
# By the clock here. A machine whose tests have not begun after BOOT_SECONDS does not come up.
readonly MACHINE_SECONDS=14400 LAB_MACHINE_SECONDS=$((6 * LAB_SECONDS)) BOOT_SECONDS=1800
readonly BOOT_MODULES=(virtio_pci 9pnet_virtio 9p overlay)
# Of the machine, in a network namespace here that goes with it. The third has no zero-copy, as it
# lacks VIRTIO_F_ACCESS_PLATFORM; the fourth has more queues than the machine has processors.
readonly CABLES=(1 2 3 4)
# Of the suites that are scenarios.
declare -rA SCENARIOS=(
    [ipvs]='IPVS'
    [labs]='^(TestFaults|TestMoves|TestJoinPorts|TestTransfersByMultipathTCP)$'
    [netem]='TestNetem'
)

main() {
    [[ ${1-} != --inside ]] || inside_machine "$2"
    [[ ${1-} != --beside-cables ]] || beside_cables "${@:2}"
    [[ $(id -u) == 0 ]] || die "needs root: the machine's disk is this one's root"
    [[ $CLOCK == @(instructions|host) ]] || die "CLOCK is '$CLOCK': take instructions or host"
    local suites=("$@") suite failed=0
    ((${#suites[@]})) || suites=(bookworm trixie sid)
    need qemu-system-x86_64 qemu-system-x86
    need busybox busybox-static
    need cpio cpio
    need depmod kmod
    need jq jq
    need ip iproute2
    folder=$(mktemp -d "${TMPDIR:-/tmp}/guideway-vms.XXXXXX")
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    [[ " ${suites[*]} " != *" "[bts]*" "* ]] || build_tests
    for suite in "${suites[@]}"; do
        [[ -z ${SCENARIOS[$suite]-} || -e $folder/scenarios.test ]] || build_scenarios
        fetch_kernel "$(kernel_of "$suite")"
        if [[ $suite == units ]]; then
            run_units || failed=1
        else
            run_machine "$suite" || failed=1
        fi
    done
    table
    exit $failed
}

clean_up() {
    [[ -z ${machine-} ]] || kill -TERM "$machine" 2>/dev/null || true
    rm -rf "$folder"
}

# The programs of tests are run in the machine as they are built here.
build_tests() {
    BPF_COMPILERS=$(tools/bpf-compilers.sh)
    # Emulated machines are slow: more of the forwarder is optimised than elsewhere.
    cargo test --no-run --config 'profile.dev.package.guideway-forwarder.opt-level=1' --message-format=json -p guideway-agent -p guideway-forwarder -p nic 2>"$folder/build.log" |
        jq -r 'select(.profile.test and .executable and .target.name != "allocation") | "\(.manifest_path | split("/")[-2])-\(.target.kind[0]) \(.executable)"' \
            >"$folder/programs" || {
        cat "$folder/build.log" >&2
        die "the tests do not build"
    }
    printf '%s\n' "$BPF_COMPILERS" >"$folder/compilers"
}

# Of Debian's stable release, unless KERNEL says another: keepalived has IPVS there, and take-overs
# work with AF_XDP.
kernel_of() { [[ $1 == units || -n ${SCENARIOS[$1]-} ]] && echo "${KERNEL:-trixie}" || echo "$1"; }

build_scenarios() {
    need keepalived keepalived
    CGO_ENABLED=0 go test -c -tags vms -o "$folder/scenarios.test" ./lab/scenarios || die "the scenarios do not build"
}

# fetch_kernel SUITE: the newest of the suite, checked by apt's keys.
fetch_kernel() {
    local apt=$folder/apt-$1 names mirror
    mkdir -p "$apt"/{lists,cache,etc} "$KERNELS"
    mirror=$(debian_mirror)
    [[ -n $mirror ]] || die "apt's sources here have no Debian: run it on one"
    echo "deb $mirror $1 main" >"$apt/etc/sources.list"
    local options=(-o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o "Dir::Etc::SourceList=$apt/etc/sources.list"
        -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o APT::Default-Release= -o APT::Sandbox::User=root)
    apt-get "${options[@]}" -q update >"$apt/log" 2>&1 || { cat "$apt/log" >&2; die "cannot read what $1 has"; }
    release=$(apt-cache "${options[@]}" depends linux-image-amd64 | sed -n 's/^ *Depends: linux-image-\([0-9].*-amd64\)$/\1/p' | head -n 1)
    [[ -n $release ]] || die "$1 has no linux-image-amd64"
    [[ ! -e $KERNELS/$1/$release ]] || return 0
    # From 7.2 on the image, its modules and their list are packages of their own.
    mapfile -t names < <(apt-cache "${options[@]}" --names-only search "^linux-(image|binary|modules|base)-${release//+/\\+}\$" | cut -d' ' -f1)
    rm -rf "${KERNELS:?}/$1"
    mkdir -p "$apt/packages" "$KERNELS/$1"
    (cd "$apt/packages" && apt-get "${options[@]}" -q download "${names[@]}") >"$apt/log" 2>&1 ||
        { cat "$apt/log" >&2; die "cannot get ${names[*]} of $1"; }
    for package in "$apt/packages"/*.deb; do
        dpkg-deb -x "$package" "$KERNELS/$1/root"
    done
    # In older ones /lib is a folder.
    [[ -d $KERNELS/$1/root/lib ]] || ln -s usr/lib "$KERNELS/$1/root/lib"
    depmod -b "$KERNELS/$1/root" "$release"
    touch "$KERNELS/$1/$release"
}

# run_machine SUITE: 1 if a test failed there, or it did not come up.
run_machine() {
    local root out=$folder/$1 seconds=$MACHINE_SECONDS
    root=$KERNELS/$(kernel_of "$1")/root
    mkdir -p "$out"
    make_initrd "$root" "$out/initrd"
    if [[ -n ${SCENARIOS[$1]-} ]]; then
        cp "$folder/scenarios.test" "$out"
        echo "scenarios /mnt/out/scenarios.test" >"$out/programs"
        printf '%s\n' "$1" "${ONLY:-${SCENARIOS[$1]}}" "$IPVS_ROUNDS" "${FAULTS-}" >"$out/scenarios"
        seconds=$LAB_MACHINE_SECONDS
    else
        cp "$folder"/{programs,compilers} "$out"
        echo "${ONLY-}" >"$out/only"
    fi
    : >"$out/rows"
    say "$1: Linux $release"
    emulate "$1" "$root" "$seconds" $(network_devices)
    judge "$1" "$out"
}

# emulate SUITE ROOT SECONDS [options]: a machine, until it turns itself off. It ends with this
# script, also if that is killed. Emulated, MWAIT of an idle processor spins, and Linux 6.1 waits for
# its second processor for ever if instructions are counted: scenarios, which need no second one, do
# without, and all else has the host's clock.
emulate() {
    local root=$2 out=$folder/$1 clock=(-icount shift=1) processors=2
    case $CLOCK-$release-${SCENARIOS[$1]-} in
    instructions-6.1.*-?*) processors=1 ;;
    host-* | *-6.1.*) clock=() ;;
    esac
    unshare --net "$PWD/tools/vms.sh" --beside-cables setpriv --pdeathsig TERM timeout "$3" qemu-system-x86_64 -nodefaults -no-reboot -display none -accel tcg "${clock[@]}" -cpu max,-monitor -smp $processors -m 3072 \
        -kernel "$(ls "$root/boot/vmlinuz-$release" "$root/lib/modules/$release/vmlinuz" 2>/dev/null | head -n 1)" \
        -initrd "$out/initrd" -append "console=ttyS0 panic=-1 rdinit=/init guideway=$PWD" -serial "file:$out/console" \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
        -virtfs "local,path=$out,mount_tag=out,security_model=none" \
        -virtfs "local,path=$root/lib/modules,mount_tag=modules,security_model=none,readonly=on" \
        -device virtio-serial-pci -chardev "socket,id=console,path=$out/emulator,server=on,wait=off" \
        -mon chardev=console,mode=readline -chardev "socket,id=port,path=$out/emulator" -device virtserialport,chardev=port \
        "${@:4}" </dev/null >"$out/qemu" 2>&1 &
    machine=$!
    came_up "$out" || kill -TERM "$machine" 2>/dev/null || true
    wait "$machine" || true
    machine=
}

# came_up FOLDER: whether tests have begun there, in good time.
came_up() {
    local end=$((SECONDS + BOOT_SECONDS))
    while ((SECONDS < end)) && kill -0 "$machine" 2>/dev/null; do
        [[ ! -e $1/booted && ! -e $1/log ]] || return 0
        sleep 1
    done
    return 1
}

# run_units: tools/units.sh, in a machine whose changes are on a disk: it boots for each step, with
# this machine's systemd but few of its services.
run_units() {
    local root out=$folder/units begun=$SECONDS outcome=FAILED boot
    local system=$folder/disk/upper/etc/systemd/system
    root=$KERNELS/$(kernel_of units)/root
    mkdir -p "$out" "$folder/disk/work" "$system/multi-user.target.wants"
    make_initrd "$root" "$out/initrd" virtio_blk ext4
    for service in postgresql keepalived podman podman-restart podman-auto-update systemd-timesyncd e2scrub_reap; do
        ln -s /dev/null "$system/$service.service"
    done
    ln -s ../guideway-units.service "$system/multi-user.target.wants/"
    cat >"$system/guideway-units.service" <<END
[Unit]
After=basic.target dbus.service links.service
[Service]
Environment=HOME=/root WAIT_SECONDS=120
WorkingDirectory=$PWD
ExecStart=/bin/bash -c 'tools/units.sh --in-machine || systemctl poweroff'
StandardOutput=append:/mnt/out/log
StandardError=inherit
END
    # This machine may be a container; that one is none.
    mknod "$folder/disk/upper/.dockerenv" c 0 0
    mke2fs -q -t ext4 -d "$folder/disk" "$folder/disk.ext4" 2G
    say "units: Linux $release"
    for boot in 1 2 3; do
        emulate units "$root" "$MACHINE_SECONDS" -drive "file=$folder/disk.ext4,format=raw,if=virtio"
    done
    ! tail -n 1 "$out/log" | grep -q 'as expected$' || outcome=passed
    rows+="$(row units $((SECONDS - begun)) "$outcome, Linux $release, $boot boots")"$'\n'
    [[ $outcome == passed ]] || { tail -n 90 "$out/log" "$out/console" >&2; return 1; }
}

# mac CABLE END
mac() { echo "52:54:00:00:0$1:0$2"; }

# pairs CABLE...: as the tests are told of them.
pairs() {
    local cable
    for cable in "$@"; do
        printf '%s ' "$(mac "$cable" 0)=$(mac "$cable" 1)"
    done
}

network_devices() {
    local cable end queues platform
    for cable in "${CABLES[@]}"; do
        queues=2 platform=on
        case $cable in
        3) platform=off ;;
        4) queues=4 ;;
        esac
        for end in 0 1; do
            echo "-netdev tap,id=tap$cable$end,ifname=tap$cable$end,script=no,downscript=no,vhost=off,queues=$queues"
            echo "-device virtio-net-pci,netdev=tap$cable$end,id=nic-$(mac "$cable" "$end" | tr : -),mac=$(mac "$cable" "$end"),mq=on,vectors=$((2 * queues + 2)),disable-legacy=on,iommu_platform=$platform,queue_reset=on,rx_queue_size=1024"
        done
    done
}

# beside_cables COMMAND: in a network namespace of its own. A bridge knows no offloads and says
# nothing by itself, so that the cable carries what the tests send.
beside_cables() {
    local cable end
    sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
    for cable in "${CABLES[@]}"; do
        ip link add "bridge$cable" mtu 9000 type bridge mcast_snooping 0 || die "this kernel has no bridges"
        for end in 0 1; do
            ip tuntap add "tap$cable$end" mode tap multi_queue
            ip link set "tap$cable$end" master "bridge$cable" mtu 9000 txqueuelen 10000 up
        done
        ip link set "bridge$cable" up
    done
    exec "$@"
}

# make_initrd ROOT FILE [modules]
make_initrd() {
    local content=$folder/initrd module number=100
    rm -rf "$content"
    mkdir -p "$content/modules"
    cp "$(command -v busybox)" "$content/busybox"
    for module in "${BOOT_MODULES[@]}" "${@:3}"; do
        modprobe -d "$1" -S "$release" --show-depends "$module"
    done | sed -n 's/^insmod \(\S*\).*/\1/p' | awk '!seen[$0]++' | while read -r module; do
        unpacked "$module" >"$content/modules/$number" # loaded in the order of their names
        number=$((number + 1))
    done
    cat >"$content/init" <<'INIT'
#!/busybox sh
b=/busybox
$b mkdir -p /proc /dev /lower /rw /root
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod $module; done
share() { $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,$3 $1 $2; }
disk() { [ -b /dev/vda ] && $b mount -t ext4 /dev/vda /rw || $b mount -t tmpfs -o size=2g rw /rw; }
share host /lower ro,cache=loose && disk && $b mkdir -p /rw/upper /rw/work &&
    $b mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work root /root &&
    $b mkdir -p /root/mnt/out /root/mnt/modules && share out /root/mnt/out rw && share modules /root/mnt/modules ro || $b poweroff -f
guideway=$($b sed 's/.*guideway=\(\S*\).*/\1/' /proc/cmdline)
$b mount --move /proc /root/proc
$b mount --move /dev /root/dev
if [ -b /root/dev/vda ]; then
    $b mkdir -p "/root/lib/modules/$($b uname -r)"
    $b mount --bind "/root/mnt/modules/$($b uname -r)" "/root/lib/modules/$($b uname -r)"
    for folder in /root/tmp /root/var/tmp; do $b mount -t tmpfs tmp $folder; done
    exec $b switch_root /root /sbin/init
fi
exec $b switch_root /root /bin/bash $guideway/tools/vms.sh --inside $guideway
INIT
    chmod +x "$content/init"
    (cd "$content" && find . | cpio -o -H newc --quiet | gzip -1) >"$2"
}

unpacked() {
    case $1 in
    *.xz) xz -dc "$1" ;;
    *.zst) zstd -dcq "$1" ;;
    *) cat "$1" ;;
    esac
}

# Inside, as process 1: its standard output is the console.
inside_machine() {
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
    mount -t sysfs sys /sys
    mount -t tmpfs run /run
    mount -t tmpfs tmp /tmp
    mount -t bpf bpf /sys/fs/bpf
    mount -t cgroup2 cgroup /sys/fs/cgroup
    mkdir -p /dev/pts /dev/shm "/lib/modules/$(uname -r)"
    mount -t devpts pts /dev/pts
    mount -t tmpfs shm /dev/shm
    mount --bind "/mnt/modules/$(uname -r)" "/lib/modules/$(uname -r)"
    modprobe tun
    ip link set lo up
    cut -d. -f1 /proc/uptime >/mnt/out/booted
    if [[ -e /mnt/out/scenarios ]]; then
        inside_scenarios "$1"
    else
        inside_tests "$1"
    fi
    touch /mnt/out/ended
    sync
    echo o >/proc/sysrq-trigger
    sleep 60
}

inside_tests() {
    local without=() chosen
    chosen=$(</mnt/out/only)
    BPF_COMPILERS=$(</mnt/out/compilers)
    export BPF_COMPILERS
    try "$1/agent" verifier-agent agent-lib every_compiler --nocapture
    try "$1/nic" verifier-nic nic-lib every_compiler --nocapture
    try "$1/agent" agents-at-xdp agent-lib program::at_xdp --skip every_compiler
    if at_least 6.6; then
        try "$1/agent" agents-at-tc agent-lib program::at_tc --skip every_compiler
        try "$1/agent" agents-tunnels agent-test namespaces::
    else
        # These expect mode tc where interfaces keep their offloads (docs/agent.md).
        row agents-at-tc 0 "not before Linux 6.6" >>/mnt/out/rows
        row agents-tunnels 0 "not before Linux 6.6" >>/mnt/out/rows
    fi
    # Of take-overs docs/operate.md has what older kernels need, or cannot do.
    if ! at_least 6.4; then
        without=(--skip af_xdp_sockets_change_hands)
        row af_xdp-take-over 0 "not before Linux 6.4" >>/mnt/out/rows
    fi
    (($(sysctl -n net.core.optmem_max) > 20480)) || sysctl -q -w net.core.optmem_max=131072
    try "$1/nic" sockets nic-test "${without[@]}"
    try "$1/forwarder" links forwarder-test namespaces::links --ignored
    # As virtio_net has zero-copy.
    if at_least 6.13; then
        inside_zero_copy "$1"
    else
        row zero-copy 0 "not before Linux 6.13" >>/mnt/out/rows
    fi
}

# The tests of sockets and of the forwarder once more, over cables of the machine, one at a time.
inside_zero_copy() {
    local GUIDEWAY_TEST_CABLES GUIDEWAY_TEST_ZERO_COPY=1 GUIDEWAY_TEST_EMULATOR without with
    # What they say is wanted of a row that is stopped, too: libtest would print it at the end.
    local alone=(--test-threads=1 --nocapture)
    export GUIDEWAY_TEST_CABLES GUIDEWAY_TEST_ZERO_COPY GUIDEWAY_TEST_EMULATOR
    modprobe -a virtio_net virtio_console
    GUIDEWAY_TEST_EMULATOR=$(echo /dev/vport*p1)
    # Of these one is about veth, the other about machines without further interfaces.
    without=(--skip where_native_mode_cannot_be --skip what_cannot_work)
    GUIDEWAY_TEST_CABLES=$(pairs 1 2)
    try "$1/nic" zero-copy-sockets nic-test "${alone[@]}" "${without[@]}"
    try "$1/nic" zero-copy-chunks nic-test "${alone[@]}" --ignored a_device_gets
    with=(packets_reach_their_backends_over_af_xdp plans_are_swapped after_kill_9
        links_go_down native_af_xdp_is_handed_over steered_workers_are_handed_over
        where_a_successor_dies virtio_net_with_zero_copy)
    try "$1/forwarder" zero-copy-forwarder forwarder-test "${alone[@]}" --include-ignored "${with[@]}"
    GUIDEWAY_TEST_CABLES=$(pairs 1 3)
    try "$1/nic" zero-copy-beside nic-test "${alone[@]}" --ignored beside_an_interface
    GUIDEWAY_TEST_CABLES=$(pairs 4)
    try "$1/nic" spare-queues nic-test "${alone[@]}" --ignored queues_that_come
    try "$1/forwarder" many-queues forwarder-test "${alone[@]}" --ignored virtio_net_sends
    unset GUIDEWAY_TEST_ZERO_COPY
    GUIDEWAY_TEST_CABLES=$(pairs 3)
    try "$1/nic" no-zero-copy nic-test "${alone[@]}" af_xdp_native
    try "$1/forwarder" no-zero-copy-cache forwarder-test "${alone[@]}" a_plan_that_says_nothing
}

inside_scenarios() {
    local suite only seconds=$LAB_SECONDS
    export LAB_TABLES=/mnt/out/tables FAULTS
    { read -r suite; read -r only; read -r IPVS_ROUNDS; read -r FAULTS; } </mnt/out/scenarios
    modprobe -a ip_vs ip_vs_mh sch_netem
    # One lab at a time: the machine is slow.
    try "$1/lab/scenarios" "$suite" scenarios -test.v -test.parallel 1 -test.run "$only"
}

at_least() { [[ $(printf '%s\n' "$1" "$(uname -r)" | sort -V | head -n 1) == "$1" ]]; }

# try FOLDER NAME PROGRAM [arguments]
try() {
    local program begun=$SECONDS outcome=passed
    [[ $2 =~ ${chosen-} ]] || return 0
    program=$(sed -n "s/^$3 //p" /mnt/out/programs)
    cd "$1"
    timeout "${seconds:-$TEST_SECONDS}" "$program" "${@:4}" >"/mnt/out/$2.log" 2>&1 || outcome=FAILED
    # A program without tests, or whose tests skip themselves, has tried nothing.
    if ! grep -q '^test result: ok\. [1-9]\|^--- PASS' "/mnt/out/$2.log" || grep -q '^SKIPPED\|SKIPPED .*: needs\|^--- SKIP' "/mnt/out/$2.log"; then
        outcome=FAILED
    fi
    row "$2" $((SECONDS - begun)) "$outcome" >>/mnt/out/rows
}

# judge SUITE FOLDER: enters its rows.
judge() {
    local name
    if [[ ! -e $2/booted ]]; then
        tail -n 30 "$2/console" "$2/qemu" >&2
        rows+="$(row "$1" 0 "Linux $release does not come up")"$'\n'
        return 1
    fi
    rows+="$(row "$1" "$(<"$2/booted")" "Linux $release")"$'\n'"$(<"$2/rows")"$'\n'
    rows+=$(sed -n -E 's/^.*instructions in.*$/    &/p; s/^ *--- .*s\)$/    &/p' "$2"/*.log)$'\n'
    [[ ! -e $2/tables ]] || rows+=$(<"$2/tables")$'\n'
    for name in $(awk '/FAILED$/ { print $1 }' "$2/rows"); do
        printf '\n== %s: %s\n' "$1" "$name" >&2
        tail -n 200 "$2/$name.log" >&2
    done
    # Of a test that the time was too short for, the log says how far it came.
    [[ -e $2/ended ]] || { tail -n 30 "$2/console" "$2"/*.log >&2 || true; rows+="    it did not end"$'\n'; return 1; }
    grep -q 'passed$\|FAILED$' "$2/rows" || { rows+="    nothing was tried"$'\n'; return 1; }
    ! grep -q 'FAILED$' "$2/rows"
}

rows=
table() { printf '\n== Kernels\n%s' "$rows"; }

main "$@"
