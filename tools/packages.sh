#!/usr/bin/env bash
# Makes packages and images of this tree, in the folder OUT (dist):
#
#   tools/packages.sh
#
#   NAME_VERSION-1_ARCH.deb, NAME-VERSION-1.ARCH.rpm    guideway, guideway-agent, guideway-lab,
#                                                       and guideway-debug for debuggers
#   NAME_VERSION_ARCH.image.tar, oci/NAME               images for containers
#   NAME_VERSION.cdx.json                               what each was built from (CycloneDX)
#   SHA256SUMS
#
# LAB_SYSTEM is a tar of a Debian with all that the lab starts: then there is an image of the lab,
# too (tools/lab-image.sh).
#
# VERSION replaces the version in Cargo.toml. ARCH is the architecture, if it is not this
# machine's: arm64 on amd64, with rustup's library and the distribution's cross compiler. Two
# runs for one commit give the same bytes, whatever folders they use: they contain no path and
# no build time.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly out=${OUT:-$PWD/dist}
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)}
readonly version stage=$PWD/target/packages/stage
host=$(go env GOHOSTARCH)
readonly host arch=${ARCH:-$host}
# Programs that are packed, and the prefix of those that know their format.
bin=$stage/host binutils=
# Of programs, man pages and all files that are packed.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
export CARGO_TARGET_DIR=$PWD/target/packages

main() {
    [[ $arch == "$host" ]] || have_cross_compilers
    rm -rf "$stage" "$out"
    mkdir -p "$stage" "$out"
    build MORE_RUST="-p pages"
    [[ $arch == "$host" ]] || cross_build
    stage_all
    local program
    for program in guideway guideway-lab guideway-forwarder guideway-agent; do
        split_debug "$program"
    done
    (cd tools/packages && go build -trimpath -o "$CARGO_TARGET_DIR/packages" .)
    "$CARGO_TARGET_DIR/packages" -stage "$stage" -out "$out" -version "$version" -commit "$(git rev-parse HEAD)" \
        -arch "$arch" -time "$SOURCE_DATE_EPOCH" -lab-system "${LAB_SYSTEM-}"
    ls -l "$out"
}

# build [VARIABLE=VALUE...]: with what debuggers need, which is taken apart afterwards.
build() {
    export RUSTFLAGS="--remap-path-prefix=$PWD=guideway --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo -C link-arg=-Wl,--build-id=sha1"
    make build BIN="$bin" VERSION="$version" GO_STRIP= "$@"
}

have_cross_compilers() {
    [[ $arch == arm64 ]] || { echo "packages: ARCH is '$arch': take $host or arm64" >&2 && exit 2; }
    binutils=aarch64-linux-gnu-
    command -v "${binutils}gcc" >/dev/null || { echo "packages: ${binutils}gcc is missing: apt-get install gcc-aarch64-linux-gnu" >&2 && exit 1; }
    rustup target add aarch64-unknown-linux-gnu
}

# Beside this machine's programs, which write the pages.
cross_build() {
    export GOARCH=$arch CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=${binutils}gcc
    bin=$stage/bin
    build
    unset GOARCH CARGO_BUILD_TARGET
}

# A tree for each package.
stage_all() {
    local whole=$stage/guideway name
    BIN=$bin tools/install.sh "$whole" /usr /etc /usr/lib/systemd/system /usr/lib/sysusers.d /usr/lib/tmpfiles.d
    install -D -t "$whole/usr/bin" "$bin/guideway-lab"
    "$stage/host/guideway" pages "$whole/usr/share"
    "$stage/host/guideway-lab" pages "$whole/usr/share"
    "$CARGO_TARGET_DIR/release/pages" "$whole/usr/share"
    gzip -9 -n "$whole"/usr/share/man/man1/*
    move_to guideway-agent usr/bin/guideway-agent usr/lib/systemd/system/guideway-{agent,backend}.service etc/guideway/agent.yaml
    move_to guideway-lab usr/bin/guideway-lab
    for name in guideway-agent guideway-lab; do
        (cd "$whole" && find usr/share -name "$name*" -o -name "_$name*") | while read -r file; do
            move_to "$name" "$file"
        done
    done
    for name in guideway guideway-agent guideway-lab; do
        install -D -m 644 LICENSE "$stage/$name/usr/share/doc/$name/copyright"
        install -m 644 -t "$stage/$name/usr/share/doc/$name" LICENSES/*-*.txt CHANGELOG.md
    done
}

# move_to PACKAGE FILE...: from the tree of all into that package's.
move_to() {
    local file
    for file in "${@:2}"; do
        install -d "$stage/$1/${file%/*}"
        mv "$stage/guideway/$file" "$stage/$1/$file"
    done
}

# What debuggers look for by the number of a build.
split_debug() {
    local program id debug
    program=$(ls "$stage"/*/usr/bin/"$1")
    id=$(readelf -n "$program" | sed -n 's/^ *Build ID: //p')
    [[ $id =~ ^[0-9a-f]{16,}$ ]] || { echo "packages: $program has no build id" >&2 && exit 1; }
    debug=$stage/guideway-debug/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug
    install -d "${debug%/*}"
    "${binutils}objcopy" --only-keep-debug --compress-debug-sections "$program" "$debug"
    chmod 644 "$debug"
    "${binutils}strip" "$program"
}

main
