# Evenkeel's commands. `make help` lists them; `make demo` and `make test` are all that a newcomer needs.
#
# Your environment is respected: RUSTC_WRAPPER, RUSTFLAGS, CARGO_TARGET_DIR, CARGO_BUILD_JOBS and so on.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# The steps of a target come one after the other: cargo is parallel by itself, and logs stay readable.
.NOTPARALLEL:
.PHONY: help deps build demo test check fmt fmt-check clippy buf alerts rest-fuzz deny audit accept bench bench-leases \
	peers deb deb-check container-check lint clean

# What follows the command: `make demo ARGS="--seed 3"`, `make test ARGS="lease"`.
ARGS ?=
# Which lines of `make accept`: a theme (main, doors, allocator), a line (main.3), several with commas, or all.
PART ?= all
# `make LOCKED=--locked …` refuses to touch Cargo.lock. `.ci/run` does.
LOCKED ?=

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BINARIES := evenkeeld evenkeel-gpu evenkeel

# No colours into a file or a pipe, unless the user asks for them.
ifeq ($(CARGO_TERM_COLOR)$(MAKE_TERMOUT),)
export CARGO_TERM_COLOR := never
endif

help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

deps: ## install what the build needs from the system (apt as root; else it says what)
	@scripts/deps.sh

build: deps ## build the daemon, the emulated GPU and the command line
	cargo build --release $(LOCKED) $(BINARIES:%=--bin %)

demo: build ## run the whole loop on an emulated GPU: under two minutes
	@$(TARGET_DIR)/release/evenkeel demo $(ARGS)

test: deps ## run the tests
	@scripts/test.sh $(LOCKED) $(ARGS)

check: fmt-check buf alerts deny clippy test ## everything that CI runs

fmt: ## format the code
	cargo fmt --all

fmt-check:
	cargo fmt --all --check

lint: clippy buf deny ## clippy, the wire, the dependencies

# Warnings are errors here, not in the code: a newer compiler must not break a user's build.
clippy: deps
	cargo clippy --workspace --all-targets $(LOCKED) -- -D warnings
	cargo clippy --workspace --lib --bins --no-default-features $(LOCKED) -- -D warnings

buf:
	@scripts/buf-lint.sh

alerts: ## check and try the alert rules, where promtool is (Debian: prometheus)
	@if promtool --version >/dev/null 2>&1; then \
		promtool check rules config/alerts.yml && promtool test rules config/alerts.test.yml; \
	else \
		echo "promtool: skipped, since it is not installed (apt install prometheus)" >&2; \
	fi

rest-fuzz: build ## let schemathesis look for mistakes in REST (needs the network, once), and promtool in its metrics
	@scripts/rest-fuzz.sh $(TARGET_DIR)/release

# Without the advisories, which need the network: `make audit`.
deny:
	@if cargo deny --version >/dev/null 2>&1; then \
		cargo deny --log-level warn check bans licenses sources; \
	else \
		echo "cargo deny: skipped, since it is not installed (cargo install cargo-deny --locked)" >&2; \
	fi

audit: ## compare the dependencies with the published advisories (needs the network)
	cargo deny --log-level warn check advisories

accept: build ## measure the figures that were asked for: PART=main, doors, allocator, doors.4, … or all
	cargo build --release $(LOCKED) --bin bench-leases --bin accept
	@$(TARGET_DIR)/release/accept --part $(PART) $(ARGS)

bench: deps ## run the benchmarks of single functions
	cargo bench $(LOCKED) -p evenkeel-bench $(ARGS)

deb: build ## make the Debian package (installs cargo-deb if it is missing)
	@scripts/deb.sh

deb-check: deb ## install the package in a clean Debian 12 and use it there (needs root and the network)
	@scripts/deb-check.sh

container-check: ## build the image with a real engine and run it (needs root and the network)
	@scripts/container-check.sh

bench-leases: build ## measure leases beside etcd, Redis and PostgreSQL: about half an hour; ARGS=--short
	cargo build --release $(LOCKED) --bin bench-leases
	@$(TARGET_DIR)/release/bench-leases $(ARGS)

peers: ## install etcd, Redis and PostgreSQL for it (Debian, as root); their services stay off
	@scripts/peers.sh

clean: ## remove what was built
	cargo clean
	rm -rf node_modules
