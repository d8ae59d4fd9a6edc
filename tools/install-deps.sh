#!/usr/bin/env bash
# Installs missing programs that are needed to build, check and try Guideway.
#
#   tools/install-deps.sh [build] [check] [lab] [browser]   (no argument: the first three)
#   tools/install-deps.sh packages NAME...                  (these packages only)
#
#   build    compilers and headers for bin/*
#   check    what `make lint` and `make generate` also need
#   lab      the router, servers and tools of the demo and of the lab tests
#   browser  a browser for the tests of the console, 300 MB; only if named
#
# Guarantees:
# - Programs that are present are used, wherever they came from. Only missing ones are
#   installed, by apt, and reported. With nothing to install it takes milliseconds and needs
#   neither root nor network.
# - No daemon (bird, frr, nginx, prometheus, etcd) is started, stopped or enabled: the lab
#   runs its own instances with their own files.
# - Compilers that the distribution does not have are not downloaded: a line for each says
#   what is missing and how to get it.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/go/bin:${HOME:-/nonexistent}/.cargo/bin:/usr/sbin:/sbin

readonly GO_MIN=1.26      # what go.mod asks for
readonly GO_AUTO_MIN=1.21 # the first one that can fetch the one asked for
readonly RUST_MIN=1.95    # rust-toolchain.toml
readonly POLICY=/usr/sbin/policy-rc.d
readonly POLICY_MARK='# written by guideway tools/install-deps.sh'

# <command or file that shows it is there> <package>
build_needs() {
    cat <<LIST
cc gcc
/usr/include/stdlib.h libc6-dev
/usr/include/linux/bpf.h linux-libc-dev
${CLANG:-clang} ${CLANG:-clang}
llvm-strip llvm
/usr/include/bpf/bpf_helpers.h libbpf-dev
LIST
}

check_needs() {
    cat <<'LIST'
git git
python3 python3
protoc protobuf-compiler
/usr/include/google/protobuf/descriptor.proto libprotobuf-dev
LIST
}

lab_needs() {
    cat <<'LIST'
ip iproute2
tc iproute2
nft nftables
ethtool ethtool
bird bird2
birdc bird2
/usr/lib/frr/bgpd frr
keepalived keepalived
nginx nginx-light
wrk wrk
tshark tshark
/usr/lib/python3/dist-packages/scapy python3-scapy
tcpdump tcpdump
curl curl
jq jq
dnsmasq dnsmasq-base
socat socat
systemd-analyze systemd
prometheus prometheus
promtool prometheus
etcd etcd-server
etcdctl etcd-client
LIST
}

browser_needs() {
    cat <<'LIST'
chromium chromium
/usr/share/fonts/truetype/dejavu fonts-dejavu-core
LIST
}

main() {
    if [[ ${1-} == packages ]]; then
        install_packages "${@:2}"
        return
    fi
    local groups=("$@") group packages=() problems=()
    ((${#groups[@]})) || groups=(build check lab)
    for group in "${groups[@]}"; do
        case $group in
        build | check | lab | browser) collect_missing "$group" ;;
        *) die "unknown group '$group': take build, check, lab, browser or packages" ;;
        esac
    done
    if ! command -v go >/dev/null || ! command -v cargo >/dev/null; then
        refresh_empty_lists
    fi
    collect_go
    collect_rust
    stop_on_problems
    if ((${#packages[@]})); then
        install_packages "${packages[@]}"
    fi
    install_rust_toolchain
}

die() {
    printf 'install-deps: %s\n' "$*" >&2
    exit 1
}

say() { printf 'install-deps: %s\n' "$*"; }

# Adds to `packages` what of group $1 is not there.
collect_missing() {
    local probe package
    while read -r probe package; do
        present "$probe" || add_package "$package"
    done < <("${1}_needs")
}

present() {
    case $1 in
    /*) [[ -e $1 ]] ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

add_package() {
    [[ " ${packages[*]-} " == *" $1 "* ]] || packages+=("$1")
}

# True if version $1 is at least $2.
at_least() { [[ $(printf '%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# Version of package $1 that apt would install, without epoch; empty if none.
candidate() {
    command -v apt-cache >/dev/null || return 0
    apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: \([0-9]*:\)\{0,1\}\([0-9][^ ]*\)$/\2/p'
}

# A fresh container has no package lists, so apt knows of nothing.
refresh_empty_lists() {
    if is_debian && [[ $(id -u) == 0 ]] && ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; then
        apt_get update || true
    fi
}

collect_go() {
    local version
    if command -v go >/dev/null; then
        version=$(GOTOOLCHAIN=local go env GOVERSION)
        version=${version#go}
        at_least "$version" "$GO_AUTO_MIN" ||
            problems+=("Go $version is too old: needed is $GO_MIN or newer ($GO_AUTO_MIN can fetch it), from https://go.dev/dl")
    elif version=$(candidate golang-go) && [[ -n $version ]] && at_least "$version" "$GO_AUTO_MIN"; then
        packages+=(golang-go)
    else
        problems+=("Go is missing and this distribution has none that is new enough: $(get_go)")
    fi
}

get_go() {
    echo "install Go $GO_MIN or newer from https://go.dev/dl to /usr/local/go (or anywhere in PATH$(sudo_hint))"
}

collect_rust() {
    local version
    if command -v rustup >/dev/null; then
        return 0 # install_rust_toolchain sees to the version
    elif command -v cargo >/dev/null && command -v rustc >/dev/null; then
        version=$(rustc --version | cut -d' ' -f2)
        at_least "$version" "$RUST_MIN" ||
            problems+=("Rust $version is too old: needed is $RUST_MIN or newer, from https://rustup.rs")
    elif [[ -n $(candidate rustup) ]]; then
        packages+=(rustup)
    else
        problems+=("Rust is missing and this distribution has no rustup: install it as https://rustup.rs says (cargo must be in PATH$(sudo_hint))")
    fi
}

# Under sudo the caller's toolchains are easily out of sight.
sudo_hint() {
    [[ -z ${SUDO_USER-} ]] || printf '; with sudo: sudo env "PATH=$PATH" "HOME=$HOME" make ...'
}

stop_on_problems() {
    ((${#problems[@]})) || return 0
    printf 'install-deps: %s\n' "${problems[@]}" >&2
    exit 1
}

install_packages() {
    local fresh=() package
    is_debian || die "not Debian or Ubuntu; please install what these packages bring there: $*"
    [[ $(id -u) == 0 ]] || die "missing packages need root; please run: apt-get install -y --no-install-recommends $*"
    say "installing $*"
    for package in "$@"; do
        [[ -n $(candidate "$package") ]] || {
            apt_get update || true # a third party's dead source is no reason to stop
            break
        }
    done
    for package in bird2 frr nginx-light prometheus etcd-server; do
        [[ " $* " == *" $package "* ]] && fresh+=("$package")
    done
    forbid_daemons
    apt_get install --no-install-recommends "$@" || {
        # Package lists that are weeks old name files that are gone.
        apt_get update || true
        apt_get install --no-install-recommends "$@"
    }
    leave_disabled ${fresh[@]+"${fresh[@]}"}
}

is_debian() {
    [[ -r /etc/os-release ]] && (
        . /etc/os-release
        [[ " $ID ${ID_LIKE-} " =~ \ (debian|ubuntu)\  ]]
    )
}

# Quiet unless it fails.
apt_get() {
    local log
    if log=$(DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null 2>&1); then
        return 0
    fi
    printf '%s\n' "$log" >&2
    return 1
}

# While packages are installed, maintainer scripts ask policy-rc.d whether they
# may start or stop a daemon; 101 means no. An administrator's own policy stays
# and decides. One that a killed run of ours left behind is ours to remove.
forbid_daemons() {
    if [[ -e $POLICY || -L $POLICY ]] && ! grep -qsxF "$POLICY_MARK" "$POLICY"; then
        "$POLICY" nginx start >/dev/null 2>&1 && say "$POLICY exists and allows daemons to start; it is left as it is"
        return 0
    fi
    trap 'rm -f "$POLICY"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    printf '#!/bin/sh\n%s\nexit 101\n' "$POLICY_MARK" >"$POLICY"
    chmod 755 "$POLICY"
}

# Daemons that came just now must not appear at the next boot either.
leave_disabled() {
    local package service
    for package in "$@"; do
        case $package in
        bird2) service=bird ;;
        frr) service=frr ;;
        nginx-light) service=nginx ;;
        prometheus) service=prometheus ;;
        etcd-server) service=etcd ;;
        esac
        if command -v systemctl >/dev/null; then
            systemctl disable --quiet "$service" 2>/dev/null || true
        else
            update-rc.d "$service" disable >/dev/null 2>&1 || true
        fi
        say "$service is installed, neither started nor enabled"
    done
}

# rustup follows rust-toolchain.toml; where it may not install by itself we ask.
install_rust_toolchain() {
    command -v rustup >/dev/null || return 0
    if rustup which cargo && rustup which cargo-clippy && rustup which rustfmt; then
        return 0
    fi >/dev/null 2>&1
    say "installing the Rust toolchain that rust-toolchain.toml names"
    local version
    version=$(rustup --version 2>/dev/null | cut -d' ' -f2)
    # Before 1.28 `rustup toolchain install` wanted a name, but any use of the
    # toolchain installed it.
    if at_least "$version" 1.28; then
        rustup toolchain install
    else
        rustup show active-toolchain
    fi ||
        die "rustup could not install the toolchain of rust-toolchain.toml; its message stands above"
}

main "$@"
