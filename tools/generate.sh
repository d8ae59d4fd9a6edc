#!/bin/sh
# Regenerates everything that is derived from proto/ and committed: the Go
# code beside each .proto, and docs/config.md from the schema's comments.
#
# Generators are pinned here and installed into .cache/bin, so that two
# machines generate the same bytes. protoc itself comes from the distribution
# (with libprotobuf-dev for google/protobuf/*.proto); the header that names
# its version is removed, because it is the one thing that may differ.
#
# `tools/generate.sh --check` regenerates and fails if anything changed.
set -eu
cd "$(dirname "$0")/.."

PROTOC_GEN_GO=v1.36.12
PROTOC_GEN_GO_GRPC=v1.6.2

bin="$PWD/.cache/bin"

need() {
    command -v "$1" >/dev/null || { echo "generate: $1 is missing: install $2" >&2; exit 1; }
}

# install NAME MODULE/PACKAGE VERSION: once per version.
install_generator() {
    stamp="$bin/.$1-$3"
    [ -e "$stamp" ] && return
    mkdir -p "$bin"
    GOBIN="$bin" go install "$2@$3"
    touch "$stamp"
}

generate_go() {
    find proto/guideway -name '*.proto' | LC_ALL=C sort | xargs \
        env PATH="$bin:$PATH" protoc -I proto -I proto/third_party \
        --go_out=proto --go_opt=paths=source_relative \
        --go-grpc_out=proto --go-grpc_opt=paths=source_relative
    find proto -name '*.pb.go' -exec sed -i '/^\/\/ [-\t]*protoc  *v/d;/^\/\/ - protoc  *v/d' {} +
}

generated_files() {
    find proto -name '*.pb.go'
    [ ! -e docs/config.md ] || echo docs/config.md
}

digest() {
    generated_files | LC_ALL=C sort | xargs sha256sum
}

need protoc "protobuf-compiler and libprotobuf-dev"
need go "Go 1.26 or later"
before=$(digest)
install_generator protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go "$PROTOC_GEN_GO"
install_generator protoc-gen-go-grpc google.golang.org/grpc/cmd/protoc-gen-go-grpc "$PROTOC_GEN_GO_GRPC"
generate_go
[ ! -d tools/configdoc ] || go run ./tools/configdoc >docs/config.md.new
[ ! -e docs/config.md.new ] || mv docs/config.md.new docs/config.md

if [ "${1:-}" = --check ] && [ "$before" != "$(digest)" ]; then
    echo "generate: generated files were stale: run 'make generate' and commit the result" >&2
    generated_files | xargs git --no-pager diff --stat -- >&2
    exit 1
fi
