#!/bin/sh
# Runs the programs of an earlier commit together with those of this one in the lab:
#
#   tools/upgrade.sh COMMIT
#
# The earlier programs are built once, in a worktree of that commit, .cache/former/COMMIT.
set -eu
cd "$(dirname "$0")/.."

commit=$(git rev-parse --verify --short "${1:?usage: make upgrade FORMER=commit}^{commit}")
tree=.cache/former/$commit
bin=$PWD/$tree/bin
mkdir -p .cache/former
[ -e "$tree/go.mod" ] || { git worktree prune; git worktree add --detach "$tree" "$commit"; }
if [ ! -x "$bin/guideway-forwarder" ] || [ ! -x "$bin/guideway-agent" ] || [ ! -x "$bin/guideway" ]; then
    (
        cd "$tree"
        CGO_ENABLED=0 go build -trimpath -o bin/guideway ./cli
        # One target directory for all: what they depend on is mostly the same.
        CARGO_TARGET_DIR=../target cargo build --release -p guideway-forwarder -p guideway-agent
        install -D -t bin ../target/release/guideway-forwarder ../target/release/guideway-agent
    )
fi
UPGRADE_FROM=$bin go test -tags upgrade -count=1 -timeout 15m -v ./lab/scenarios -run '^TestUpgrade$'
