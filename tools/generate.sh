#!/bin/sh
# Regenerates the committed files that are derived from others: the Go code beside each .proto;
# docs/config.md, from the comments of the config's schema; the tables in docs/counters.md,
# which the programs print from their metrics and drop reasons; and ebpf/tunnels.h, which the
# eBPF programs include, from wire/src/tunnel.
#
# Generators are pinned in tools/tools.mod. protoc comes from the distribution, with
# libprotobuf-dev for google/protobuf/*.proto. Its version may differ, so the header line that
# names it is removed. The descriptors of buf/validate/validate.proto come from the Go module
# that enforces it, so the two always have the same version.
#
# `tools/generate.sh --check` regenerates and fails if anything changed.
set -eu
cd "$(dirname "$0")/.."

validate=.cache/validate.binpb
examples=${CARGO_TARGET_DIR:-target}/debug/examples

need() {
    command -v "$1" >/dev/null || { echo "generate: $1 is missing: install $2" >&2; exit 1; }
}

generate_go() {
    go run ./tools/validateproto >"$validate"
    find proto/guideway -name '*.proto' | LC_ALL=C sort | xargs \
        env PATH="$PWD/.cache/bin:$PATH" protoc -I proto --descriptor_set_in="$validate" \
        --go_out=proto --go_opt=paths=source_relative \
        --go-grpc_out=proto --go-grpc_opt=paths=source_relative
    find proto -name '*.pb.go' -exec sed -i '/^\/\/ [-\t]*protoc  *v/d;/^\/\/ - protoc  *v/d' {} +
}

generate_docs() {
    protoc -I proto --descriptor_set_in="$validate" --include_source_info \
        --descriptor_set_out=.cache/config.binpb proto/guideway/config/v1/config.proto
    mkdir -p docs
    go run ./tools/configdoc .cache/config.binpb >.cache/config.md
    cmp -s .cache/config.md docs/config.md || cp .cache/config.md docs/config.md
}

# Each table is a name, rows, and a blank line or the end of its file. It stands in the
# document between a comment with its name and the next `<!-- end -->`.
generate_counters() {
    rm -rf .cache/counters
    mkdir -p .cache/counters
    "$examples/forwarder_counters" >.cache/counters/forwarder
    "$examples/agent_counters" >.cache/counters/agent
    COUNTERS_TABLES="$PWD/.cache/counters" go test -count=1 -run TestCountersTable \
        ./controller/metrics ./speaker ./blackbox >.cache/counters.log || {
        cat .cache/counters.log >&2
        exit 1
    }
    awk '
        FNR == 1 || $0 == "" { name = "" }
        FILENAME != "docs/counters.md" {
            if (name == "") { name = $0 } else { rows[name] = rows[name] $0 "\n" }
            next
        }
        /^<!-- end -->/ { skip = 0 }
        !skip { print }
        sub(/^<!-- table: /, "") && sub(/ \(.*/, "") {
            if (!($0 in rows)) { fail("no program prints: " $0) }
            printf "%s", rows[$0]
            delete rows[$0]
            skip = 1
        }
        END { for (name in rows) { fail("docs/counters.md has no place for: " name) } }
        function fail(text) { print "generate: " text >"/dev/stderr"; exit 1 }
    ' .cache/counters/* docs/counters.md >.cache/counters.md
    cmp -s .cache/counters.md docs/counters.md || cp .cache/counters.md docs/counters.md
}

generate_header() {
    "$examples/tunnels_h" >.cache/tunnels.h
    cmp -s .cache/tunnels.h ebpf/tunnels.h || cp .cache/tunnels.h ebpf/tunnels.h
}

generated_files() {
    find proto -name '*.pb.go'
    [ ! -e docs/config.md ] || echo docs/config.md
    echo docs/counters.md
    echo ebpf/tunnels.h
}

digest() {
    generated_files | LC_ALL=C sort | xargs sha256sum
}

need protoc "protobuf-compiler and libprotobuf-dev"
need go "Go 1.26 or later"
need cargo "Rust (rust-toolchain.toml says which)"
mkdir -p .cache
before=$(digest)
tools/tools.sh
# As the tests build them, so that nothing is built twice.
cargo build --quiet --workspace --example tunnels_h --example forwarder_counters --example agent_counters
generate_go
generate_docs
generate_counters
generate_header

if [ "${1:-}" = --check ] && [ "$before" != "$(digest)" ]; then
    echo "generate: generated files were stale: run 'make generate' and commit the result" >&2
    generated_files | xargs git --no-pager diff --stat -- >&2
    exit 1
fi
