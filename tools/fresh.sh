#!/usr/bin/env bash
# Runs the commands of README's "Try it" as a newcomer would: on a bare Debian 13, in a clone
# of HEAD, as written there.
#
#   tools/fresh.sh [demo] [test]        (no argument: both)
#
# Needs root, debootstrap (installed if missing) and about 10 GB in FRESH_DIR (default
# /var/tmp). FRESH_HOST_RUST=1 uses the machine's own rustup toolchains, for networks without
# access to Rust.
#
# Guarantees:
# - Mounts, processes and network namespaces are in namespaces of their own and end with them;
#   the directory is removed, also after a failure or Ctrl-C.
# - After a failure the logs of labs and tests are in .cache/fresh.
# - It uses the machine's mirror, proxies, certificates and settings for apt, Go and cargo, so
#   that it works wherever `make demo` works, and nothing else of the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly NAME=fresh
. tools/container.sh

readonly SUITE=trixie
readonly LOGS=$PWD/.cache/fresh
export NEW_HOME=/root # of the newcomer, in there
# Variables that say where modules, crates and toolchains come from.
readonly PASSED='^(https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY|GOPROXY|GONOPROXY|GOPRIVATE|GOSUMDB|GONOSUMDB|GOINSECURE|CARGO_(HTTP|NET|REGISTR|SOURCE)[A-Z_]*|RUSTUP_(DIST_SERVER|UPDATE_ROOT))='

main() {
    local commands=("$@") command
    ((${#commands[@]})) || commands=(demo test)
    for command in "${commands[@]}"; do
        [[ $command == demo || $command == test ]] || die "unknown command '$command': take demo, test or both"
    done
    [[ $(id -u) == 0 ]] || die "needs root: it makes a system of its own to chroot into"
    [[ -z $(git status --porcelain) ]] || say "what is not committed is not tried"

    root=$(mktemp -d "${FRESH_DIR:-/var/tmp}/guideway-fresh.XXXXXX")
    trap 'rm -rf --one-file-system "$root" "$root.log"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    chmod 755 "$root"
    say "a bare Debian ($SUITE) in $root"
    # With what one needs to have a checkout and to type `make`.
    debian "$SUITE" "$root" ca-certificates,git,make
    pass_settings
    clone
    for command in "${commands[@]}"; do
        try "$command"
    done
    say "as expected: ${commands[*]}"
}

# How this machine reaches the world.
pass_settings() {
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    apt-config dump | grep -E '^Acquire::(https?|Check|Retries|ForceIPv)' >"$root/etc/apt/apt.conf.d/99host" || true
    cp -a /etc/apt/auth.conf.d/. "$root/etc/apt/auth.conf.d/" 2>/dev/null || true
    if compgen -G '/usr/local/share/ca-certificates/*' >/dev/null; then
        cp -RL /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
        chroot "$root" update-ca-certificates >/dev/null 2>&1
    fi
    local file
    for file in .config/go/env .cargo/config.toml .netrc; do
        [[ -f $HOME/$file ]] || continue
        install -D -m 600 "$HOME/$file" "$root$NEW_HOME/$file"
    done
}

clone() {
    git clone -q --no-hardlinks . "$root$NEW_HOME/guideway"
    git -C "$root$NEW_HOME/guideway" checkout -q --detach "$(git rev-parse HEAD)"
}

# One command of the README, in namespaces that end with it.
try() {
    local begun=$SECONDS passed=()
    mapfile -t passed < <(env | grep -E "$PASSED")
    say "make $1"
    unshare --mount --pid --fork --kill-child --propagation private \
        bash -euo pipefail -c "$(declare -f enter); enter \"\$@\"" enter "$root" "$1" "${passed[@]}" ||
        failed "$1" $((SECONDS - begun))
    say "make $1 took $((SECONDS - begun)) s"
}

# Keeps the logs of a command that failed after $2 s, and stops.
failed() {
    rm -rf "$LOGS"
    mkdir -p "$LOGS"
    cp -r "$root/logs/." "$root$NEW_HOME/guideway/.cache/test" "$LOGS" 2>/dev/null || true
    die "make $1 failed after $2 s; its logs are in $LOGS"
}

# Inside the namespaces: the mounts a system has, and the command. What labs log is below
# /run, which ends with the namespaces. The root is the one of all mount namespaces that
# labs make, as on a machine: of a mere chroot they would see what is outside.
enter() {
    local root=$1 command=$2
    shift 2
    # pivot_root wants a mount, and `ip netns exec` changes how / propagates.
    mount --bind "$root" "$root"
    cd "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    if [[ ${FRESH_HOST_RUST-} == 1 ]]; then
        local cargo=${CARGO_HOME:-$HOME/.cargo} rustup=${RUSTUP_HOME:-$HOME/.rustup}
        mkdir -p "$root$NEW_HOME/.cargo/bin" "$root$NEW_HOME/.rustup"
        mount --bind -o ro "$cargo/bin" "$root$NEW_HOME/.cargo/bin"
        mount --bind -o ro "$rustup" "$root$NEW_HOME/.rustup"
    fi
    mkdir -p outside
    pivot_root . outside
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    hash -r
    cd /
    umount --lazy /outside
    local result=0
    env -i HOME="$NEW_HOME" PATH="$PATH" LANG=C.UTF-8 "$@" make -C "$NEW_HOME/guideway" "$command" || result=$?
    ((result == 0)) || cp -r /run/guideway-lab /logs 2>/dev/null || true
    return "$result"
}

main "$@"
