#!/usr/bin/env bash
# What `make packages` makes, and an image of the lab, which needs no other program on the machine
# that runs it:
#
#   tools/lab-image.sh              the same variables as tools/packages.sh; root, network
#
#   podman run --rm -it --privileged localhost/guideway-lab:VERSION demo
#
# Below our programs is a Debian with the router, servers and tools that the lab starts, of the
# day: two runs differ where Debian's packages do.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly NAME=lab-image SUITE=trixie
. tools/container.sh

# Of the list that tools/install-deps.sh has for the lab, what the demo starts.
readonly PACKAGES=iproute2,nftables,ethtool,bird2,nginx-light,etcd-server,etcd-client,ca-certificates

main() {
    [[ $(id -u) == 0 ]] || die "needs root: it installs a Debian into a folder"
    folder=$(mktemp -d "${TMPDIR:-/var/tmp}/guideway-$NAME.XXXXXX")
    trap 'rm -rf --one-file-system "$folder"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    say "Debian $SUITE with $PACKAGES"
    debian "$SUITE" "$folder/system" "$PACKAGES"
    rm -rf "$folder/system"/{var/cache/apt,var/lib/apt/lists,var/log,dev,proc,sys,usr/share/{doc,man,locale}}/*
    tar -C "$folder/system" --sort=name --numeric-owner --mtime="@$(git log -1 --format=%ct)" --clamp-mtime \
        -cf "$folder/system.tar" .
    LAB_SYSTEM=$folder/system.tar tools/packages.sh
}

main
