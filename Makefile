# Everything that one does with this tree. A fresh machine needs a Rust toolchain, Python 3.11 or later, gcc and make.
SHELL := bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
CARGO ?= cargo
ARGS ?=
# Our own crates; `python` is no default member, because it is built by maturin for the interpreter it is meant for.
EVERY_CRATE := --workspace --all-targets
# Crates that decide. Simulations need them optimised, which takes four times as long to compile; the other tests, and the
# wheel that is tested, do not.
DECISIONS := types session core node
UNOPTIMISED := $(foreach it,$(DECISIONS) kv ssd,--config profile.dev.package.tiffin-$(it).opt-level=0)
# Ten thousand simulated clusters take a third less time if calls are inlined across all parts of a crate, which costs less
# than that to compile.
SIMULATED := $(foreach it,$(DECISIONS) proto throttle history sim sim-runner,--config profile.dev.package.tiffin-$(it).codegen-units=1)
# Cargo compiles every crate with the features of all selected packages together. The tests of these crates turn on features
# that a wheel does not have, such as fault injection. They are selected apart, so that all other tests use the crates that
# were compiled for the wheel, as shipped. `python` has no tests here; it is selected because of the features of dependencies.
FEATURED := sim kv-sim ssd throttle transport
TEST_SHIPPED := --locked --workspace $(FEATURED:%=--exclude tiffin-%) $(UNOPTIMISED)
TEST_FEATURED := --locked -p tiffin-python $(FEATURED:%=-p tiffin-%) $(SIMULATED)
# Some tests of the decisions need fault injection, too.
TEST_FAULTY := --locked -q -p tiffin-python $(foreach it,$(DECISIONS),-p tiffin-$(it) --features tiffin-$(it)/mutants) $(UNOPTIMISED)
# With `--no-run` nextest refuses `--no-fail-fast`.
RUN_TESTS := $(if $(shell $(CARGO) nextest --version 2>/dev/null),$(CARGO) nextest run,\
  $(CARGO) test --lib --bins --tests --examples)
SOURCES := $(shell find Cargo.toml Cargo.lock crates python python-mooncake README.md LICENSE \
             -type f -not -path '*/__pycache__/*' -not -path '*/tests/*' -not -name '*.so' 2>/dev/null)

.PHONY: help run test wheel wheel-310 release check-release check-release-aarch64 bench bench-check bench-scale bench-instructions fmt docs clean-venv clean
.PHONY: bench-copy bench-copied bench-fairness bench-security chaos bench-restart miri fuzz simulate mutant-table bench-ssd torture-ssd kv-simulate kv-mutants bench-kv check-kv-peer
.PHONY: bench-features soak-features check-features-peer check-torch example
.PHONY: check-plugins site
.PHONY: clients conformance docs-mooncake test-ha kernels copy-gpu test-gpu bench-gpu torture-gpu check-page check-alerts check-chart
.PHONY: check-fmt check-lint check-build check-unit check-docs check-deny check-instructions check-wheel check-python check-drop-in

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS=$$'\t' read -r target what; do \
	  printf '  make %-12s %s\n' "$$target" "$$what"; done

run: ## Build and start a store on loopback (ARGS='--memory 8GiB' adds flags); Ctrl-C stops it
	@$(CARGO) build --release --locked -p tiffin-cli
	@exec target/release/tiffin up $(ARGS)

# Tests mostly wait for processes, so lints and links are checked beside them. Cargo lets one command at a time compile: the
# format is checked first, so that the tests, which are compiled already, take cargo's lock before clippy does.
test: ## Set up and run every check, as the continuous integration does
	+@bash .ci/parts 'instructions deny &' wheel 'python &' 'drop-in &' build 'unit &' fmt lint docs

check-fmt: .venv/ready # Is everything formatted?
	$(CARGO) fmt --all --check
	.venv/bin/ruff format --check -q .

check-lint: .venv/ready # Clippy over every target of every crate, where a warning is an error; ruff over the Python code
	.venv/bin/ruff check -q .
	$(CARGO) clippy --locked $(EVERY_CRATE) -- -D warnings

check-build: # Everything that `check-unit` runs, compiled
	$(RUN_TESTS) $(TEST_SHIPPED) --no-run
	$(RUN_TESTS) $(TEST_FEATURED) --no-run
	$(CARGO) test $(TEST_FAULTY) --no-run

check-unit: # All tests of the Rust crates, tidy and doc examples among them; then the decisions with fault injection
	$(RUN_TESTS) $(TEST_SHIPPED) --no-fail-fast
	$(RUN_TESTS) $(TEST_FEATURED) --no-fail-fast
	$(CARGO) test $(TEST_FAULTY)
	$(CARGO) test -q $(TEST_SHIPPED) --doc
	$(CARGO) test -q $(TEST_FEATURED) --doc

check-docs: # Every link in a doc comment leads somewhere
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps --document-private-items

check-deny: # Licences, bans, sources, and advisories where their database can be had; `tidy` checks the licences too, for machines without cargo-deny
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
	  (set -x; $(CARGO) deny --offline check licenses bans sources) && \
	  if $(CARGO) deny fetch db 2>/dev/null; then (set -x; $(CARGO) deny --offline check advisories); \
	  else echo 'the database of advisories cannot be fetched; they were not checked'; fi; \
	else echo 'cargo-deny is not installed; only the licence test of tidy ran'; fi

check-instructions: # The hot paths take no more instructions than they did; skipped, and said so, where valgrind cannot be had
	@bash bench/instructions-needs.sh
	$(PYTHON) bench/instructions.py --cargo $(CARGO)

# The driver for tests of device memory.
STANDIN := target/debug/libtiffin_gpu_standin.so
$(STANDIN): $(wildcard crates/gpu-standin/src/*.rs)
	$(CARGO) build -q --locked -p tiffin-gpu-standin

check-wheel: .venv-test/wheels $(STANDIN) # The wheels can be built, and installed where there is nothing else

PYTEST := .venv-test/bin/pytest -c python/pyproject.toml --rootdir=. --durations=15
check-python: .venv-test/wheels $(STANDIN) # The installed wheel `tiffin`, and what the documents show
	$(PYTEST) python/tests $(ARGS)

check-drop-in: .venv-test/wheels $(STANDIN) # The installed wheel that owns the package `mooncake`
	$(PYTEST) python-mooncake/tests $(ARGS)

# These two build nothing and need no network: the machine with the GPU gets a copy of this tree and of the wheels in
# `dist`. Torch is that of the machine's Python.
.venv-gpu/ready: $(wildcard dist/*.whl)
	@ls dist/tiffin-*-abi3-*.whl dist/tiffin_mooncake-*.whl >/dev/null || { printf '\nhint: copy the wheels into dist\n' >&2; exit 1; }
	@rm -rf $(@D) && $(PYTHON) -m venv --system-site-packages $(@D)
	@# That Python may be one of a virtual environment, whose packages another one does not inherit.
	@$(PYTHON) -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' > \
	  "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/parent.pth"
	@$(@D)/bin/python -c 'import pytest' 2>/dev/null || \
	  $(@D)/bin/python -m pip install -q --disable-pip-version-check --no-index --no-deps dist/test/*.whl || \
	  { printf '\nhint: that Python has no pytest; run `make copy-gpu` before you copy the tree\n' >&2; exit 1; }
	$(@D)/bin/python -m pip install -q --disable-pip-version-check --no-index --no-deps --force-reinstall dist/tiffin-*-abi3-*.whl dist/tiffin_mooncake-*.whl
	@touch $@

copy-gpu: dist/.built .venv/ready ## Collect in dist what `test-gpu` and `bench-gpu` need: the wheels, and pytest
	rm -rf dist/test && mkdir -p dist/test
	.venv/bin/pip download -q --disable-pip-version-check --only-binary :all: -d dist/test pytest

test-gpu: .venv-gpu/ready ## The tests of device memory, on a machine with a GPU: from a copied tree with copied wheels in `dist`
	TIFFIN_TEST_GPU=1 .venv-gpu/bin/python -m pytest -p no:cacheprovider -c python/pyproject.toml --rootdir=. \
	  python-mooncake/tests/test_gpu.py python-mooncake/tests/gpu_torch.py python-mooncake/tests/test_tensors.py \
	  python/tests/test_gpu_native.py python/tests/gpu_torch_native.py python/tests/gpu_torch_kv.py $(ARGS)

bench-gpu: .venv-gpu/ready ## Puts, gets and KV pages of device memory beside the floor, on such a machine (ARGS='--peer PYTHON' adds the official CUDA wheel)
	.venv-gpu/bin/python bench/gpu.py $(ARGS)
	.venv-gpu/bin/python bench/gpu_kv.py

torture-gpu: .venv-gpu/ready ## Deletes and puts beside transfers of a device, with every read checked byte by byte, on such a machine (ARGS='--seconds 600')
	.venv-gpu/bin/python python/tests/gpu_torture.py $(ARGS)

kernels: ## Compile the copy kernel to PTX, which needs no GPU
	@rm -rf .venv-kernels && $(PYTHON) -m venv .venv-kernels
	.venv-kernels/bin/pip install -q --disable-pip-version-check nvidia-cuda-nvrtc-cu11==11.8.89
	.venv-kernels/bin/python crates/gpu/kernels/compile.py

# Torch without its CUDA libraries, for a machine without a GPU.
INSTALL_TORCH := .ci/install_torch.py

CONFORMANCE_VENV = $(if $(TORCH),.venv-torch,.venv-test)
conformance: .venv-test/wheels $(if $(TORCH),.venv-torch/wheels) $(if $(PEER),.venv-peer/ready) ## The answers of the drop-in, row by row; PEER=1 runs the official wheel too and prints the differences; TORCH=1 adds tensors (a gigabyte)
	$(if $(PEER),@bash bench/peer-needs.sh)
	$(if $(PEER),.venv-peer/bin/pip install -q --disable-pip-version-check numpy $(if $(TORCH),safetensors))
	$(if $(PEER),$(if $(TORCH),.venv-peer/bin/python $(INSTALL_TORCH)))
	$(CONFORMANCE_VENV)/bin/python python-mooncake/compare.py $(if $(PEER),--peer .venv-peer/bin/python) $(ARGS)

clients: .venv-test/wheels .venv-peer/ready $(if $(TORCH),.venv-torch/wheels) ## Published clients of Mooncake's store on the drop-in, for real; TORCH=1 adds those that need torch (a gigabyte)
	.venv-test/bin/pip install -q --disable-pip-version-check msgpack
	.venv-test/bin/pytest -rs -c python/pyproject.toml --rootdir=. python-mooncake/tests/real_clients.py $(ARGS)
ifdef TORCH
	.venv-torch/bin/pip install -q --disable-pip-version-check --no-deps hs-connectors TransferQueue vllm-omni tensordict
	.venv-torch/bin/pip install -q --disable-pip-version-check --no-warn-conflicts cloudpickle importlib_metadata msgspec orjson pyvers pyzmq
	.venv-torch/bin/pytest -rs -c python/pyproject.toml --rootdir=. python/tests/test_features_torch.py -k specforge
	.venv-torch/bin/pytest -rs -c python/pyproject.toml --rootdir=. python-mooncake/tests/real_clients_torch.py
endif

docs-mooncake: .venv-test/wheels ## Write the tables of docs/mooncake-compat.md from the installed wheels
	.venv-test/bin/python python-mooncake/support.py

check-kv-peer: .venv-test/wheels .venv-peer/ready ## The KV hierarchy over the official Mooncake wheel, in processes of its own
	@bash bench/peer-needs.sh
	.venv-test/bin/pytest -c python/pyproject.toml --rootdir=. python/tests/kv_mooncake.py $(ARGS)

wheel: dist/.built ## Build both wheels into dist/

wheel-310: .venv/ready ## The wheel for CPython 3.10, which has no buffer protocol in its limited API
	@mkdir -p target && cp python/pyproject.toml target/pyproject.toml.kept
	@trap 'mv target/pyproject.toml.kept python/pyproject.toml' EXIT; \
	  sed -i 's/^requires-python = .*/requires-python = "==3.10.*"/' python/pyproject.toml && set -x && \
	  .venv/bin/maturin build --profile dist --locked -m python/Cargo.toml -o dist --no-default-features -i python3.10

release: .venv-release/ready ## Wheels and binaries for x86-64 and aarch64 with glibc 2.17 or later, and checksums, into dist/release (PLATFORMS=, PROFILE=)
	.ci/release .venv-release/bin
	@$(MAKE) --no-print-directory check-release

check-release: # What is in dist/release: names, metadata, symbols, and a smoke test with each Python of this machine
	$(PYTHON) python/check_release.py dist/release

check-release-aarch64: target/aarch64-root/ready # The same, and the wheel and the binary for aarch64 run under qemu-user; installs Debian's qemu-user
	@command -v qemu-aarch64 >/dev/null || apt-get install -y --no-install-recommends qemu-user || \
	  { echo 'check-release-aarch64: qemu-aarch64 is missing, and it cannot be installed' >&2; exit 1; }
	$(PYTHON) python/check_release.py dist/release --emulate aarch64=target/aarch64-root

target/aarch64-root/ready: .ci/aarch64-root
	.ci/aarch64-root $(@D)

# Tests take wheels that are built in a fifth of the time, and notice where numbers overflow. Like the Rust tests, these
# wheels can stop tokio's clock, which nothing in them does: with the same features both use the same compiled crates.
dist/.built: OPTIMISED := --profile dist
target/wheels/.built: OPTIMISED := --profile dev $(UNOPTIMISED) --features tokio/test-util
dist/.built target/wheels/.built: $(SOURCES) .venv/ready
	@mkdir -p $(@D) && rm -f $(@D)/tiffin-*-abi3-*.whl $(@D)/tiffin_mooncake-*.whl
	.venv/bin/maturin build $(OPTIMISED) --locked -m python/Cargo.toml -o $(@D)
	.venv/bin/pip wheel -q --no-deps --no-build-isolation -w $(@D) ./python-mooncake
	@touch $@ && ls -l $(@D)/*.whl

bench: .venv-bench/wheels .venv-peer/ready ## Compare with the official Mooncake wheel, in turns; the table of targets (ARGS=--json); TORCH=1 adds tensors (a gigabyte)
	@bash bench/peer-needs.sh
	$(if $(TORCH),.venv-bench/bin/pip install -q --disable-pip-version-check numpy && .venv-bench/bin/python $(INSTALL_TORCH))
	$(if $(TORCH),.venv-peer/bin/pip install -q --disable-pip-version-check numpy && .venv-peer/bin/python $(INSTALL_TORCH))
	.venv-bench/bin/python bench --ours .venv-bench/bin/python --peer .venv-peer/bin/python \
	  --tiffin .venv-bench/bin/tiffin --output bench-out $(ARGS)

# These run on a machine without network, from a copied tree with `dist`; torch is that of the machine's Python.
PEER_LIBRARIES := libibverbs.so.1 libnl-3.so.200 libnl-route-3.so.200
bench-copy: dist/.built .venv/ready ## Collect in dist what `bench-copied` needs: the wheels, and libraries of the official one
	@bash bench/peer-needs.sh
	rm -rf dist/bench && mkdir -p dist/bench
	.venv/bin/pip download -q --disable-pip-version-check --no-deps -d dist/bench -r bench/requirements.txt -r bench/requirements-peer.txt
	for it in $(PEER_LIBRARIES); do cp -L "$$(ldconfig -p | sed -n "s/.* => \(.*\/$$it\)$$/\1/p" | head -1)" dist/bench; done

OFFLINE := -q --disable-pip-version-check --no-index --no-deps
bench-copied: ## Compare with the official wheel, with the wheels that `bench-copy` has collected (ARGS='--case "1 MiB"')
	rm -rf .venv-bench-copied .venv-peer-copied
	$(PYTHON) -m venv --system-site-packages .venv-bench-copied && $(PYTHON) -m venv --system-site-packages .venv-peer-copied
	.venv-bench-copied/bin/python -m pip install $(OFFLINE) dist/tiffin-*-abi3-*.whl dist/tiffin_mooncake-*.whl dist/bench/xxhash-*.whl
	.venv-peer-copied/bin/python -m pip install $(OFFLINE) dist/bench/mooncake_transfer_engine_*.whl
	LD_LIBRARY_PATH=$(CURDIR)/dist/bench .venv-bench-copied/bin/python bench --ours .venv-bench-copied/bin/python \
	  --peer .venv-peer-copied/bin/python --tiffin .venv-bench-copied/bin/tiffin --output bench-out $(ARGS)

bench-check: ## How far calls, copies, the stamp check and the data socket are from the floor of this machine
	$(CARGO) bench --locked -p tiffin-rpc --bench round_trip
	$(CARGO) bench --locked -p tiffin-transport --bench floor

bench-scale: .venv-bench/wheels .venv-peer/ready ## Throughput and memory by number of objects and clients, beside the official wheel (ARGS=1000000 bounds the objects)
	$(CARGO) bench --locked -p tiffin-core --bench scale -- $(ARGS)
	@bash bench/peer-needs.sh
	.venv-bench/bin/python bench/scale.py --ours .venv-bench/bin/python --peer .venv-peer/bin/python --output bench-out \
	  $(if $(ARGS),--objects-max $(ARGS))

bench-fairness: ## What a client sees of the load of others: calls a second and their times (ARGS=10 is the seconds of each row)
	$(CARGO) bench --locked -p tiffin-client --bench fairness -- $(ARGS)

FOLDER ?= target/tmp
test-ha: ## Several masters on real etcd, each process killed and stopped under load (ROUNDS=1); installs Debian's etcd-server
	@command -v etcd >/dev/null || apt-get install -y --no-install-recommends etcd-server || \
	  { echo 'test-ha: etcd is missing, and it cannot be installed: install etcd 3.4 or later' >&2; exit 1; }
	$(CARGO) build --locked -q -p tiffin-cli
	$(CARGO) test --locked -q -p tiffin-client --features ha-test --test ha -- $(CURDIR)/target/debug/tiffin $(or $(ROUNDS),1)

bench-ssd: .venv-bench/wheels .venv-peer/ready ## A disk raw, through the log and through the store, beside the official wheel (FOLDER= on the disk to test, ARGS=--json)
	@mkdir -p $(FOLDER)
	$(CARGO) run --release --locked -q -p tiffin-ssd --bin ssd-bench -- --path $(FOLDER)/ssd-bench $(ARGS)
	$(CARGO) bench --locked -q -p tiffin-client --bench ssd -- $(abspath $(FOLDER)) $(ARGS)
	@bash bench/peer-needs.sh
	.venv-bench/bin/python bench/tier.py --ours .venv-bench/bin/python --peer .venv-peer/bin/python \
	  --folder $(abspath $(FOLDER)) $(ARGS)

bench-security: .venv-bench/wheels ## What tokens and TLS cost, call by call, without shared memory (ARGS=--json)
	.venv-bench/bin/python bench/security.py $(ARGS)

bench-restart: ## How long a restarted master takes until it answers for a million objects (ARGS=100000 objects)
	$(CARGO) bench --locked -q -p tiffin-client --bench restart -- $(ARGS)

torture-ssd: ## Kill a log, and a node with its disk, a thousand times each (ROUNDS=, FOLDER= on the disk to test)
	@mkdir -p $(FOLDER)
	$(CARGO) run --release --locked -q -p tiffin-ssd --bin ssd-torture -- \
	  --path $(FOLDER)/torture --rounds $(or $(ROUNDS),1000)
	$(CARGO) test --release --locked -q -p tiffin-client --test processes -- kill $(or $(ROUNDS),1000)

chaos: ## Every fault of `tiffin chaos`, twice and for longer than the timers of the servers; writes the table of README.md (FOLDER=, ARGS=)
	@$(CARGO) build --release --locked -q -p tiffin-cli
	@mkdir -p $(FOLDER)
	@target/release/tiffin chaos --folder $(FOLDER) --rounds 52 --hold 12s --markdown $(ARGS) > target/chaos-table.md
	@sed -i -e '/^<!-- chaos -->$$/,/^<!-- end of the table -->$$/{/^<!--/!d}' \
	  -e '/^<!-- chaos -->$$/r target/chaos-table.md' README.md

bench-features: .venv-bench/wheels .venv-peer/ready ## Hidden states: the feature store beside SpecForge's on the official wheel (ARGS=--json)
	@bash bench/peer-needs.sh
	.venv-bench/bin/pip install -q --disable-pip-version-check numpy
	.venv-peer/bin/pip install -q --disable-pip-version-check numpy
	.venv-bench/bin/python bench/features.py --ours .venv-bench/bin/python --peer .venv-peer/bin/python $(ARGS)

MINUTES ?= 60
soak-features: .venv-test/wheels ## A bursty pipeline with retries, lost answers, stalls and kills for an hour (MINUTES=); leaks, wrong bytes, peaks
	.venv-test/bin/python examples/hidden_states/soak.py --minutes $(MINUTES) $(ARGS)

check-features-peer: .venv-features/wheels ## The contract of the feature store on the official Mooncake wheel and its master
	@bash bench/peer-needs.sh
	.venv-features/bin/python python/tests/with_mooncake.py $(ARGS)

check-torch: .venv-torch/wheels ## The feature store and the drop-in's tensors with torch (a gigabyte): all types, data loaders, the example's transformer, SpecForge's code
	.venv-torch/bin/pytest -c python/pyproject.toml --rootdir=. python/tests/test_features_torch.py \
	  python-mooncake/tests/test_conformance_tensors.py python-mooncake/tests/test_tensors.py $(ARGS)
	.venv-torch/bin/python examples/hidden_states --samples 60 --kill 2 --json --picture .venv-torch/picture.svg

PLUGINS ?= sglang vllm lmcache TransferQueue
check-plugins: .venv-plugins/wheels ## The adapters with the real packages, as far as they import without a GPU (five gigabytes; PLUGINS='sglang==0.5.20')
	.venv-plugins/bin/pip install -q --disable-pip-version-check --no-deps tensordict triton xgrammar $(PLUGINS)
	.venv-plugins/bin/pip list --disable-pip-version-check 2>/dev/null | grep -iE '^(sglang|vllm|lmcache|transferqueue|torch) '
	TIFFIN_PLUGINS=real .venv-plugins/bin/pytest -rs -c python/pyproject.toml --rootdir=. $(wildcard python/tests/test_plugin_*.py) --timeout=600 $(ARGS)

example: .venv-test/wheels ## Hidden states from producers to trainers, with a display and a picture (ARGS='--kill 3')
	.venv-test/bin/python examples/hidden_states $(ARGS)

check-alerts: ## Check the alert rules with promtool; installs Debian's prometheus
	@command -v promtool >/dev/null || apt-get install -y --no-install-recommends prometheus || \
	  { echo 'check-alerts: promtool is missing, and it cannot be installed' >&2; exit 1; }
	promtool check rules deploy/prometheus/alerts.yml
	promtool test rules deploy/prometheus/alerts_test.yml

check-page: .venv-test/wheels ## The live page in a real browser: login, live updates, escaping; screenshots in target/page; installs Debian's chromium
	@command -v chromium >/dev/null || apt-get install -y --no-install-recommends chromium fonts-dejavu-core || \
	  { echo 'check-page: chromium is missing, and it cannot be installed' >&2; exit 1; }
	$(CARGO) build --locked -q -p tiffin-cli
	.venv-test/bin/python deploy/check_page.py target/page target/debug/tiffin

check-chart: .venv-chart/ready ## Lint and render the Helm chart with helm, and compare the objects with the schemas of Kubernetes
	.venv-chart/bin/python deploy/check_chart.py

SEEDS ?= 1000000
simulate: ## Run a million simulated clusters (SEEDS=, ARGS='--start 1000000 --json')
	@$(CARGO) build --release --locked -q -p tiffin-sim
	@target/release/tiffin-sim --seeds $(SEEDS) $(ARGS)

mutant-table: ## Run every mutant, and write into docs/simulation.md how soon the simulation notices it
	@$(CARGO) build --release --locked -q -p tiffin-sim
	@target/release/tiffin-sim --table --seeds 10000 > target/mutant-table.md
	@sed -i -e '/^<!-- table -->$$/,/^<!-- end of the table -->$$/{/^<!--/!d}' \
	  -e '/^<!-- table -->$$/r target/mutant-table.md' docs/simulation.md

bench-kv: ## The cost of the control plane of the KV hierarchy, per operation and for a whole trace (ARGS=1000000 requests)
	$(CARGO) bench --locked -p tiffin-kv-replay --bench kv -- $(ARGS)

KV_SEEDS ?= 100000
kv-simulate: ## Run a hundred thousand simulated KV hierarchies (KV_SEEDS=, ARGS='--start 1000000 --json')
	@$(CARGO) build --release --locked -q -p tiffin-kv-sim
	@target/release/tiffin-kv-sim --seeds $(KV_SEEDS) $(ARGS)

kv-mutants: ## Run every mutant of the KV hierarchy, and write into docs/kv.md how soon the simulation notices it
	@$(CARGO) build --release --locked -q -p tiffin-kv-sim
	@target/release/tiffin-kv-sim --table --seeds 10000 > target/kv-mutants.md
	@sed -i -e '/^<!-- table -->$$/,/^<!-- end of the table -->$$/{/^<!--/!d}' \
	  -e '/^<!-- table -->$$/r target/kv-mutants.md' docs/kv.md

bench-instructions: ## Count the instructions of the hot paths (UPDATE=1 records them as the expected values)
	@bash bench/instructions-needs.sh
	$(PYTHON) bench/instructions.py --cargo $(CARGO) $(if $(UPDATE),--update)

# What Miri can run: code that asks the kernel for nothing. Segments are memory files, which it does not know, so the
# control segment is left to loom and shuttle, in `check-unit`.
miri: ## Look for undefined behaviour in allocator, attributes, ranges and copy kernel (needs Miri, a part of nightly Rust)
	@$(CARGO) +nightly miri --version >/dev/null 2>&1 || { \
	  printf 'error: Miri is not installed\n\nhint: `rustup component add --toolchain nightly miri rust-src`\n' >&2; exit 1; }
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 $(CARGO) +nightly miri test --locked -p tiffin-types -p tiffin-node --lib
	MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test --locked -p tiffin-transport --lib -- \
	  buffer:: copy:: tcp::frame:: shm::wire:: tests::a_range

fuzz: ## Fuzz one decoder without end (needs cargo-fuzz and nightly Rust); TARGET=frames, ARGS='-max_total_time=60'
	@$(CARGO) +nightly fuzz --version >/dev/null 2>&1 || { \
	  printf 'error: cargo-fuzz is not installed\n\nhint: `cargo install cargo-fuzz`, and `rustup toolchain install nightly`\n' >&2; exit 1; }
	$(CARGO) run -q --manifest-path fuzz/Cargo.toml --bin seeds
	$(CARGO) +nightly fuzz run $(or $(TARGET),frames) -- $(ARGS)

fmt: .venv/ready ## Format everything
	$(CARGO) fmt --all
	.venv/bin/ruff check -q --fix . || true
	.venv/bin/ruff format -q .

docs: .venv/ready ## Write the generated pages; the tests named `reference…` compare them
	UPDATE_EXPECT=1 $(CARGO) test -q --locked reference
	.venv/bin/python python/stubs.py
	.venv/bin/ruff format -q python/tiffin/aio.pyi && .venv/bin/ruff check -q --fix python/tiffin/aio.pyi

site: .venv-test/wheels ## The documentation as static files, in target/site
	.venv-test/bin/python docs/site/build.py target/site

clean-venv: ## Remove the virtual environments; the next target that needs one makes it again
	rm -rf .venv .venv-test .venv-bench .venv-peer .venv-features .venv-torch .venv-release .venv-plugins .venv-chart

clean: clean-venv ## Remove everything that was built
	rm -rf dist bench-out
	$(CARGO) clean

# Virtual environments. Tools, tests, our side of the benchmark and the peer's stay apart, so that each sees only what
# a user would have installed.
.venv/ready: python/requirements-build.txt
.venv-test/ready: python/requirements-test.txt
.venv-bench/ready: bench/requirements.txt
.venv-peer/ready: bench/requirements-peer.txt
.venv-features/ready: python/requirements-features.txt
.venv-torch/ready: python/requirements-torch.txt
.venv-release/ready: python/requirements-release.txt
.venv-plugins/ready: python/requirements-plugins.txt
.venv-chart/ready: python/requirements-chart.txt
.venv/ready .venv-test/ready .venv-bench/ready .venv-peer/ready .venv-features/ready .venv-torch/ready .venv-release/ready .venv-plugins/ready .venv-chart/ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: $(PYTHON) is older than 3.11\n\nhint: name a newer one, as in `make PYTHON=python3.12`")'
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D) || { printf '\nhint: on Debian the module is in the package python3-venv\n' >&2; exit 1; }
	$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	$(if $(filter .venv-torch .venv-plugins,$(@D)),$(@D)/bin/python $(INSTALL_TORCH))
	@touch $@

INSTALL_WHEELS = $(@D)/bin/pip install -q --disable-pip-version-check --force-reinstall --no-deps \
  $(patsubst %/.built,%/tiffin-*-abi3-*.whl,$(filter %/.built,$^)) \
  $(patsubst %/.built,%/tiffin_mooncake-*.whl,$(filter %/.built,$^))

.venv-features/wheels .venv-plugins/wheels: %/wheels: %/ready target/wheels/.built
	$(@D)/bin/pip install -q --disable-pip-version-check --force-reinstall --no-deps target/wheels/tiffin-*-abi3-*.whl
	@touch $@

# SpecForge without what it needs in turn: its data plane needs only torch.
.venv-torch/wheels: %/wheels: %/ready target/wheels/.built
	$(@D)/bin/pip install -q --disable-pip-version-check --no-deps specforge
	$(INSTALL_WHEELS)
	@touch $@

.venv-test/wheels: target/wheels/.built
.venv-bench/wheels: dist/.built
.venv-test/wheels .venv-bench/wheels: %/wheels: %/ready
	$(INSTALL_WHEELS)
	@touch $@
