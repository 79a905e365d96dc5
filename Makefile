# The only entry points of the project; CI calls the same targets. `make help` lists them.
#
# PG_CONFIG=/path/to/pg_config  chooses the server (default: Debian's PostgreSQL 15, else pg_config in the PATH)
# DESTDIR=, PREFIX=             as usual; PREFIX (/usr/local) is for the daemon's programs
# The scripts are in make/; what they share is make/lib.sh.

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
STORE ?= postgres
PREFIX ?= /usr/local
export STORE PREFIX DESTDIR

.PHONY: help deps demo test build install install-daemon installcheck lint bench bench-leases pg-upgrade fuzz soak clean

help: ## this list
	@echo 'make TARGET [PG_CONFIG=/path/to/pg_config]'
	@sed -n -E 's/^([a-z-]+):[^#]*## (.*)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

deps: # only what demo and test need; installs Debian packages, as root or with sudo
	@make/deps.sh $(DEPS_OF)

demo: deps ## throwaway server, daemon, three tables, 300,000 keys, all distinct; STORE=etcd: leases from a real etcd; FULL=1: events through a real Kafka into an S3, read back
ifdef FULL
	@make/deps.sh tests
	@demo/full.sh
else
	@demo/demo.sh
endif

test: DEPS_OF = tests
test: deps ## every test: core, loom models, daemon, SQL regression, end to end; last line: N passed, N failed
	@make/test.sh $(SUITES)

build: ## build the extension and the daemon (release)
	@make/install.sh build-extension
	@make/install.sh build-daemon

install: ## build and install the extension into the server of PG_CONFIG (honours DESTDIR)
	@make/install.sh extension

install-daemon: ## build and install idgend and idgenctl into PREFIX/bin (honours DESTDIR)
	@make/install.sh daemon

installcheck: ## SQL regression tests of the installed extension on a throwaway cluster (TESTS="name …" for some)
	@make/installcheck.sh $(TESTS)

lint: ## formatting, clippy with warnings as errors, small checks of the tree
	@make/lint.sh

bench: ## cost per id of our generators as ratios to nextval() and gen_random_uuid(), and segments under load (SUITE=segments for those alone; installed extension); SUITE=archive: rows per second into files of the archive; SUITE=outbox: events per second to a real Kafka, latency, memory while it is away (MINUTES=1); SUITE=audit: the audits' rule, and a nightly run over a clean week (RANGES=10000000); SUITE=whois: seconds of idgenctl whois with 10 million events (EVENTS=10000000), from Postgres and from the archive; SUITE=probe: events per second that the streaming probe is told from memory and reads from a real Kafka
ifeq ($(SUITE),archive)
	@cargo bench --locked --profile daemon -p idgen-daemon --bench archive
else ifeq ($(SUITE),whois)
	@cargo bench --locked --profile daemon -p idgen-daemon --bench whois
else ifeq ($(SUITE),outbox)
	@make/kafka.sh
	@cargo bench --locked --profile daemon -p idgen-daemon --bench outbox
else ifeq ($(SUITE),audit)
	@cargo bench --locked --profile daemon -p idgen-daemon --bench audit
else ifeq ($(SUITE),probe)
	@make/kafka.sh
	@cargo bench --locked --profile daemon -p idgen-daemon --bench probe
else
	@regress/bench/bench.sh
endif

# In the dev profile: what is measured is the work of etcd, and the keepers have little to do.
bench-leases: ## what 200 servers' leases cost one etcd: renewals, raft entries, p99, processor time (SERVERS=200 SECONDS=60)
	@cargo bench --locked --profile dev -p idgen-daemon --bench leases

pg-upgrade: ## pg_upgrade of a throwaway cluster from the server of OLD_PG_CONFIG to that of PG_CONFIG (both have the extension)
	@make/pg_upgrade.sh

fuzz: ## every fuzz target for FUZZ_SECONDS (60) each; needs nightly Rust and cargo-fuzz (TARGETS="name …" for some)
	@make/fuzz.sh $(TARGETS)

soak: ## SUITE=segments SEED= ROUNDS=200: crashes at every moment of a refill; SUITE=outbox SEED= ROUNDS=200: events are sent and archived while daemons, broker and Postgres are killed, a standby is promoted and S3 fails; or servers mint for MINUTES (10) while SEED breaks things, every id and commit judged: SUITE=leases STORE=etcd|postgres ETCD=3.4|3.5 (installed extension)
	@make/soak.sh

clean: ## remove everything that was built
	@rm -rf build $${CARGO_TARGET_DIR:-target}
