# The front door: `make demo` shows the product, `make test` proves it. `make help` lists the rest.

CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)
# Programs the tests talk to, by Debian package. Each is installed when missing.
TEST_PROGRAMS = redis-server:redis-server pebble:pebble knotd:knot knsupdate:knot-dnsutils promtool:prometheus curl:curl openssl:openssl python3:python3-venv faketime:faketime kill:procps script:bsdutils setpriv:util-linux node:nodejs npm:npm h2load:nghttp2-client chromium:chromium certutil:libnss3-tools update-ca-certificates:ca-certificates nginx:nginx haproxy:haproxy caddy:caddy htpasswd:apache2-utils argon2:argon2

# The version of mdBook that `make book` installs.
MDBOOK = 0.5.4

.PHONY: help demo test everything check apps admin-api-test manifests book bench import-diff microbench overload-bench pgo fuzz fuzz-smoke hot-keys http3-loss loom shares memory mutants screenshots container-test package package-test release release-parts release-test systemd-test tools

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## run the gateway with the echo upstream and a sample limit; edit its config while it runs
	@[ -x $(TARGET)/debug/sluicegate ] || echo "Building Sluicegate: the first time takes about two minutes on two cores."
	@# The dev profile: a quarter of a release build's time, and `make test` reuses it.
	@$(CARGO) build
	@$(TARGET)/debug/sluicegate demo

check: ## formatting, lints, docs, supply chain
	$(CARGO) fmt --check
	rustfmt --check --edition 2024 tests/loom/*.rs
	$(CARGO) clippy --all-targets --features fuzzing --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --quiet
	@tests/deny.sh

test: tools ## every test but those of the container and the packages; ONLY="limits outages" for some directories of tests/
	@CARGO="$(CARGO)" tests/run.sh $(ONLY)

everything: tools ## every suite that `test` leaves out, as root, and a table of the results; ONLY="apps book" for some; PROFILE=dist before a release
	@tests/everything.sh $(ONLY)

apps: ## sixteen applications behind the gateway, each with its real client and its config of the manual; ONLY="grpc_calls node_red" for some
	@$(CARGO) build --quiet
	@python3 tests/apps/run.py $(ONLY)

admin-api-test: tools ## requests to the admin API that schemathesis makes up, EXAMPLES=200 per operation, with each role; minutes
	@ADMIN_API_EXAMPLES=$(or $(EXAMPLES),200) $(CARGO) test --quiet --test limiting admin_api::openapi

screenshots: tools ## the pictures of the manual in docs/images, from a gateway with traffic; two minutes
	@$(CARGO) test --quiet --test limiting -- --ignored dashboard::pictures

manifests: tools ## the manifests for Kubernetes, the Compose files and every config of conf/ and examples/
	@$(CARGO) test --quiet --test proxying -- manifests::

book: ## build the manual with search, as target/book/index.html (mdBook, installed with cargo when missing)
	@command -v mdbook >/dev/null || $(CARGO) install mdbook --version $(MDBOOK) --locked --no-default-features --features search
	@PATH="$$PATH:$${CARGO_HOME:-$$HOME/.cargo}/bin" mdbook build docs

bench: ## CPU per request beside nginx, haproxy and Envoy, one run, as ratios; half an hour
	@$(CARGO) build --release --quiet
	python3 benches/compare.py

hot-keys: ## calls to Redis, latency and CPU of one key at high load, with leases and without; five minutes
	@$(CARGO) build --release --quiet
	python3 benches/compare.py '*hot-key*'

shares: ## requests per second of each server by weight, beside nginx and Envoy; two minutes
	@$(CARGO) build --release --quiet
	python3 benches/shares.py

import-diff: ## hand-written and random nginx configs beside their import, the same requests to both; PAIRS=2000 SEED=1 (needs nginx and htpasswd)
	@$(CARGO) build --quiet
	python3 tests/import/differ/cases.py target/debug/sluicegate
	python3 tests/import/differ/run.py target/debug/sluicegate $(or $(PAIRS),2000) $(SEED)

microbench: ## time of decisions, canonical forms, the route table and the HTTP/1.1 codec; ONLY="decide" for some; PROFILE=dev to see only that they run
	$(CARGO) bench --profile $(or $(PROFILE:release=bench),bench) --features fuzzing --bench micro -- $(ONLY)

overload-bench: ## goodput and latency with servers of known capacity under overload, beside Envoy's adaptive concurrency; eight minutes
	@$(CARGO) build --release --quiet
	python3 benches/overload.py

pgo: ## a profile-guided build, a tenth cheaper, as target/pgo/sluicegate
	@benches/pgo.sh

FUZZ = answer calls client config http3_fields http3_frames path proxy request rpc usage
fuzz: ## random input for what reads input, FUZZ="path config" of it, SECONDS=60 each; needs cargo-fuzz
	@fuzz/run.sh "$(or $(SECONDS),60)" $(FUZZ)

fuzz-smoke: ## each fuzz target for SECONDS=3, on its corpus and random changes of it; needs nothing but cargo
	@SECONDS_EACH="$(or $(SECONDS),3)" $(CARGO) test --quiet --features fuzzing --test fuzz

http3-loss: ## 10,000 requests over HTTP/3, with packets lost and reordered and clients behind a NAT that changes their ports; minutes
	@$(CARGO) test --quiet --test proxying -- --ignored http3::network

loom: ## the lock-free code, with its threads in every possible order
	$(CARGO) test --quiet --manifest-path tests/loom/Cargo.toml --target-dir $(TARGET)/loom

memory: tools ## bytes per key of every form, in memory and in Redis; takes minutes
	$(CARGO) test --quiet --test limiting -- --include-ignored --nocapture --test-threads 1 stores::bytes_per_key

mutants: tools ## mutation tests: list the mutants that no test detects; an hour
	@tests/mutants.sh $(MINUTES)

container-test: ## build the image with a Docker Engine and use it; PROFILE=dev in a third of the time
	tests/container.sh

package: ## the Debian package, in target/debian (needs dpkg-dev)
	@packaging/deb.sh

package-test: ## build the Debian package, install, run and remove it; as root, on a machine without it; PROFILE=dev
	tests/package.sh

release-parts: ## what a release has for this architecture, in target/release-parts: program, symbols, packages; PROFILE=dev
	@packaging/release/build.sh

release: release-parts ## a signed release, as target/release-VERSION; SNAPSHOT=yes for a try (docs/operating/releases.md)
	@packaging/release/assemble.sh

release-test: ## make a release, use it and attack it; as root; PROFILE=dev, REPRODUCE=yes to build it twice and compare
	tests/release.sh

systemd-test: ## boot a Debian with systemd, use the Debian package there as an operator does; as root; PROFILE=dev
	tests/systemd.sh

tools:
	@tests/tools.sh $(TEST_PROGRAMS)
