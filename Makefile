# Everything a person or a machine does with this tree. `make` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

# Toolchains are often installed here but not in root's PATH.
export PATH := $(PATH):/usr/local/go/bin:$(HOME)/.cargo/bin:/usr/sbin:/sbin
# A distribution's Go may fetch the newer one that go.mod requires.
export GOTOOLCHAIN ?= auto

PREFIX ?= /usr/local
DESTDIR ?=
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Also told by `--version`: what was built.
COMMIT := $(shell [[ -e .git ]] && commit=$$(git rev-parse --short=12 HEAD 2>/dev/null) && \
  echo ", commit $$commit$$([[ -z $$(git status --porcelain) ]] || echo ' with changes')")
GO_STRIP ?= -s -w
GO_LDFLAGS = $(GO_STRIP) -X main.version=$(VERSION) -X "github.com/guideway/guideway/cli/commandline.commit=$(COMMIT)"
# Where programs are built to, and without paths of this machine in them.
BIN ?= bin
TRIM ?= -trimpath

SECONDS_EACH ?= 30
BENCH_ARGS ?=

# Variables given on the command line reach the programs' environment by
# themselves: SEED, BACKENDS, LOAD_BALANCERS, CONNECTIONS, AGENTS, ROUTER, EVENTS,
# DEMO_REPORT, DEMO_PICTURE (make demo, demo-mptcp: MODE), BENCH_REPORT (make bench).

##@ Try it

.PHONY: demo
demo: deps-build deps-lab build ## Show it at work on real traffic (root) [SEED= BACKENDS= LOAD_BALANCERS= CONNECTIONS= AGENTS=0 ROUTER=none EVENTS=a,b DEMO_REPORT=file DEMO_PICTURE=file.svg]
	bin/guideway-lab demo

.PHONY: demo-mptcp
demo-mptcp: deps-build deps-lab build ## Transfers by Multipath TCP over two links while things break (root) [MODE=stateful SEED= BACKENDS= LOAD_BALANCERS= CONNECTIONS= EVENTS=a,b DEMO_REPORT=file]
	bin/guideway-lab demo-mptcp

.PHONY: build
build: build-go build-rust ## Build bin/guideway, bin/guideway-forwarder, bin/guideway-agent and bin/guideway-lab

.PHONY: build-go
build-go: deps-build
	CGO_ENABLED=0 go build $(TRIM) -ldflags '$(GO_LDFLAGS)' -o $(BIN)/guideway ./cli
	CGO_ENABLED=0 go build $(TRIM) -ldflags '$(GO_LDFLAGS)' -o $(BIN)/guideway-lab ./lab

.PHONY: build-rust
build-rust bench-programs: export GUIDEWAY_VERSION := $(VERSION)
build-rust bench-programs: export GUIDEWAY_VERSION_AND_COMMIT := $(VERSION)$(COMMIT)
build-rust: deps-build
	cargo build --release -p guideway-forwarder -p guideway-agent $(MORE_RUST)
	install -D -t $(BIN) $${CARGO_TARGET_DIR:-target}/$${CARGO_BUILD_TARGET:-.}/release/guideway-{forwarder,agent}

.PHONY: install
install: ## Install what `make build` built (but guideway-lab), with systemd units [PREFIX=/usr/local DESTDIR=]
	@tools/install.sh '$(DESTDIR)' '$(PREFIX)' '$(SYSCONFDIR)' '$(UNITDIR)' '$(SYSUSERSDIR)' '$(TMPFILESDIR)'

.PHONY: uninstall
uninstall: ## Remove what `make install` installed; configs, secret and state stay [PREFIX=/usr/local]
	@tools/install.sh --remove '$(PREFIX)'

.PHONY: packages
packages: deps-build ## deb, rpm, images for containers, lists of what is inside, and checksums, in dist/ [VERSION= OUT= ARCH=arm64]
	@OUT='$(OUT)' ARCH='$(ARCH)' tools/packages.sh

.PHONY: lab-image
lab-image: deps-build ## What `make packages` makes, and an image for containers in which the demo runs by itself (root, network)
	@OUT='$(OUT)' tools/lab-image.sh

.PHONY: release
release: deps-build ## Packages with checksums and notes from CHANGELOG, signed if a key is given VERSION= [KEY=gpg-key]
	@tools/release.sh '$(VERSION)' '$(KEY)'

##@ Check it

.PHONY: test
test: deps-build deps-test ## All tests: units, golden packets and, with root, namespaces and the lab
	tools/test.sh

.PHONY: check
check: deps-build deps-check deps-test ## `make test` and `make lint` at once, as CI does
	tools/test.sh check

# Results are kept by commit: it goes on where it was interrupted.
.PHONY: nightly
nightly: deps-build deps-check deps-lab ## Everything else: both routers, release, -race, compilers, a browser, upgrade, units, fuzz, soak, fresh (root) [STAGES="core" or "race fuzz" FORMER=commit]
	@tools/nightly.sh $(STAGES)

.PHONY: test-fast
test-fast: deps-build ## Only the tests that need neither root nor bin/
	tools/test.sh fast

# FAULTS_REPORT=$$PWD/docs/faults.md rewrites that page; a part of the faults is not
# enough for it.
.PHONY: faults
faults: deps-build deps-lab build ## Faults that must not hurt, under load, with both routers (root) [FAULTS=a,b+c SEED= PAIRS= LAB_ROUTER=frr FAULTS_REPORT=file.md]
	FAULTS='$(or $(FAULTS),all)' go test -count=1 -timeout 60m -v ./lab/scenarios -run '^TestFaults$$'

.PHONY: upgrade
upgrade: deps-build deps-lab build ## Each process beside those of an earlier commit, under load, to it and back (root) FORMER=commit
	@tools/upgrade.sh '$(FORMER)'

# As many rounds as TIMES, or as go into MINUTES, or both.
.PHONY: soak
soak: deps-build deps-lab build ## Repeat the tests in namespaces and list what failed at times (root) [TIMES=20 MINUTES= ONLY=regexp LOAD=busy-loops]
	CACHE_TEST_PACKETS=20000000 CACHE_TEST_SEED=$$RANDOM AGREEMENT_TEST_PACKETS=4000000 cargo test -p sim --test it -- --nocapture kernel_and_worker all_who_decide
	go run ./tools/soak $(if $(TIMES),-times $(TIMES)) $(if $(MINUTES),-minutes $(MINUTES)) -only '$(ONLY)' -load $(or $(LOAD),0)

# FRESH_HOST_RUST=1 where the network has no Rust, FRESH_DIR for 10 GB elsewhere.
.PHONY: fresh
fresh: ## Try README's commands on a bare Debian 13 (root, network) [FRESH="demo test" FRESH_HOST_RUST= FRESH_DIR=]
	@tools/fresh.sh $(FRESH)

# With what is in bin/: no other test has the units' sandboxes around the programs.
.PHONY: units
units: deps-build build ## The systemd units under a real systemd, in a container (root)
	tools/units.sh

.PHONY: vms
vms: deps-build $(if $(filter labs netem ipvs units,$(SUITES)),deps-lab build) ## The eBPF programs, sockets, VLANs, bonds and zero-copy under Debian's kernels, in emulated machines; or the units, scenarios of the lab, or keepalived and IPVS beside Guideway (root, network) [SUITES="bookworm trixie sid" with ONLY=regexp, units, netem, labs with ONLY=regexp FAULTS=, ipvs with IPVS_ROUNDS= ONLY=regexp; KERNEL=sid, CLOCK=host if nothing else runs here]
	tools/vms.sh $(SUITES)

.PHONY: packages-test
packages-test: deps-build deps-lab ## Install, upgrade under load, remove and purge the packages on a bare Debian 12 and 13 (root, network)
	tools/packages-test.sh

.PHONY: deny advisories
deny: deps-build ## Licences, sources and double versions of the crates, by cargo-deny
	tools/deny.sh licenses bans sources
advisories: deps-build ## Known vulnerabilities of crates and Go modules (network: their databases)
	tools/deny.sh advisories
	go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

.PHONY: lint
lint: deps-build deps-check lint-format lint-deps lint-tree lint-generated lint-vectors lint-go lint-rust ## Formatting, clippy, vet, staticcheck, revive, the tree's own rules, generated code

.PHONY: lint-format
lint-format:
	cargo fmt --all --check
	rustfmt --check --edition 2024 nic/src/drivers/*/mod.rs # which a macro declares
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [[ -n $$out ]]; then echo "gofmt would change: $$out" >&2; exit 1; fi

# Lock files that a build would change are not what was tested.
.PHONY: lint-deps
lint-deps:
	cargo metadata --locked --format-version 1 >/dev/null
	go mod tidy -diff

.PHONY: lint-tree
lint-tree:
	go run ./tools/lint

.PHONY: lint-go
lint-go:
	tools/tools.sh
	go vet -tags upgrade,browser,vms ./...
	.cache/bin/staticcheck -tags upgrade,browser,vms ./...
	.cache/bin/revive -config tools/revive.toml -set_exit_status ./...

.PHONY: lint-rust
lint-rust:
	cargo clippy --workspace --all-targets -- -D warnings

.PHONY: lint-generated
lint-generated:
	tools/generate.sh --check

# What every machine of a cluster has to compute alike may not drift.
.PHONY: lint-vectors
lint-vectors:
	python3 vectors/make.py --check

.PHONY: fuzz
fuzz: deps-build ## Run every fuzz target for a while [SECONDS_EACH=30]
	tools/fuzz.sh $(SECONDS_EACH)

# The programs that bench and figures run beside their own.
.PHONY: bench-programs
bench-programs: deps-build build-rust
	cargo build --release -p guideway-bench -p guideway-figures
	cargo build --release -p nic --example reflector --example live_sender

# As the forwarder's unit has it: plans and counters on huge pages.
bench figures: export GLIBC_TUNABLES = glibc.malloc.hugetlb=1

.PHONY: bench
bench: bench-programs ## Measure what a packet costs here; as root also over veth [BENCH_ARGS= BENCH_REPORT=file.json]
	@target/release/guideway-bench $(BENCH_ARGS)

# Figure 8 and those of MPLB build network namespaces; mplb-timestamps builds labs and takes half an hour.
FIGURES ?= 11 12 tracking 7 9 table-build scale swap mplb-table-1 \
  $(if $(filter 0,$(shell id -u)),8 paths mplb-7 mplb-8 mplb-9 mplb-10 mplb-timestamps)

.PHONY: figures
figures: bench-programs $(if $(filter mplb-timestamps,$(FIGURES)),build) ## Redo the papers' evaluations into bench/figures/results [FIGURES="11 9"]
	@results=bench/figures/results; for figure in $(FIGURES); do \
	  echo "== figure $$figure"; \
	  case $$figure in \
	  mplb-timestamps) go run ./bench/figures/timestamps | tee $$results/$$figure.txt ;; \
	  *) target/release/guideway-figures --out $$results $$figure ;; \
	  esac || exit 1; done

##@ Change it

.PHONY: generate
generate: deps-build deps-check ## Regenerate Go code and docs/config.md from proto/, docs/counters.md from the programs
	tools/generate.sh

.PHONY: golden
golden: deps-build ## Rewrite the golden folders and the help's text from today's behaviour; review the diff
	UPDATE_GOLDEN=1 go test -count=1 ./cli ./cli/config ./cli/top ./controller/compile/...
	UPDATE_GOLDEN=1 cargo test -p guideway-forwarder --test it every_golden_folder
	@git --no-pager diff --stat -- forwarder/tests/golden controller/compile/testdata cli/testdata cli/config/testdata cli/top/testdata

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf bin target .cache/bin .cache/test .cache/soak .cache/soak-programs .cache/former

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "; print "usage: make <target>"} \
	/^##@/ {printf "\n%s\n", substr($$0, 5)} \
	/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# What each target needs of the machine; installs with root, else says what.
.PHONY: deps-build deps-check deps-lab deps-test
deps-build:
	@tools/install-deps.sh build
deps-check:
	@tools/install-deps.sh check
deps-lab:
	@if [[ $$(id -u) != 0 ]]; then echo "the lab builds network namespaces and needs root" >&2; exit 1; fi
	@tools/install-deps.sh lab
# Without root the lab's tests are skipped, so its programs are not needed.
deps-test:
	@if [[ $$(id -u) == 0 ]]; then tools/install-deps.sh lab; fi
