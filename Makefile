# Every target sets up what it needs on first use: a virtual environment in .venv, from nothing but
# make and Python 3.11 or newer. `make help` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# The tests are made for a machine of two cores: three workers compute, which is as much waiting for servers,
# and two wait (tests/harness/lanes.py). They keep both cores busy for nine tenths of the time; a sixth would
# collect all tests once more, eight seconds of a core.
WORKERS ?= 5
PYTEST := $(BIN)/python -m pytest
# Images set it to stay small; each of the hundreds of processes of the tests would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

# What reaches every branch of the pure parts. It alone runs under coverage, which nearly doubles what a test costs.
PURE := tests/unit/topology tests/unit/topology_check tests/unit/policy tests/unit/designs \
	$(patsubst %,tests/unit/runtime/test_%.py,feeding delays early_delays misspelt raised_outcomes raw_parking) \
	tests/unit/ops/brokers/test_discovery.py tests/unit/ops/brokers/test_classification.py \
	$(patsubst %,tests/properties/test_%.py,decide raw_redrive redriver routing)
FAST := tests/unit tests/properties tests/scenarios tests/conformance
CODE := src tests tools $(wildcard benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help demo test test-packages test-needs test-modules test-pure test-fast test-brokers test-pages test-peers test-faults \
	pristine check lint types architecture prose docs release-check audit format bench bench-peers bench-pages pin clean

help: ## what each target does
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; \
	do printf '  make %-13s %s\n' "$$name" "$$text"; done

$(READY): pyproject.toml $(wildcard tools/pins/*.txt) tools/environment.py
	@$(PYTHON) tools/environment.py

demo: $(READY) ## run the five documented systems; BROKER=amqp://… on a RabbitMQ, ARGS=… for options
	@HOPBACK_BROKER="$(BROKER)" $(BIN)/hopback demo $(ARGS)

# The only steps of the tests that need the network, and root where packages are missing. The first needs no
# environment: packages come while it is made.
test-packages:
	@$(PYTHON) -m tests.harness.packages rabbitmq postgresql browser c-client node-client commands

test-needs: $(READY) test-packages ## install what the tests need: Debian packages, clients of other makers
	@$(BIN)/python -m tests.clients.environment

# Compiles the modules of all tests: workers that begin at once would each do it.
test-modules: $(READY)
	@$(PYTEST) -q --collect-only >/dev/null

test-pure: $(READY)
	$(PYTEST) -q -n 2 $(PURE) \
		--cov=hopback.topology --cov=hopback.policy --cov-branch \
		--cov-report=term-missing:skip-covered --cov-fail-under=100

# While packages come over the network, and one core checks types, the other is not left idle.
test: ## all checks and all tests, RabbitMQ included; what CI runs
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=line test-needs types lint test-modules architecture test-pure
	$(BIN)/python -m tests.harness.alone -n $(WORKERS) --dist loadgroup $(patsubst %,--ignore=%,tests/architecture $(PURE))

test-fast: $(READY) ## unit and property tests, no network; within a minute
	$(PYTEST) -n 2 -q -m "not broker and not slow and not socket and not clients" \
		-p no:schemathesis --hypothesis-profile=quick $(wildcard $(FAST))

test-brokers: $(READY) ## conformance on RabbitMQ 4.0 and 4.3 as well; minutes, and root
	@$(BIN)/python -m tests.harness.packages rabbitmq chroots
	$(BIN)/python -m tests.harness.versions
	$(PYTEST) -n $(WORKERS) --dist loadgroup tests/conformance --all-brokers
	$(PYTEST) -m all_brokers tests/integration tests/faults tests/frameworks --all-brokers

test-pages: $(READY) ## every action with every selection, in a browser over RabbitMQ; ten minutes
	@$(BIN)/python -m tests.harness.packages rabbitmq browser
	HOPBACK_ALL_CELLS=1 $(PYTEST) tests/acceptance/ops/test_selection_matrix.py

test-peers: $(READY) ## other projects' own tests on `hopback broker` and RabbitMQ; half an hour, root, the network
	@$(BIN)/python -m tests.harness.packages rabbitmq peers
	$(BIN)/python -m tests.peers $(PEERS)

test-faults: $(READY) ## the proof, long: faults, load and bad input; an hour, and root for a cluster's cuts
	@$(BIN)/python -m tests.harness.packages rabbitmq postgresql cluster
	$(BIN)/python -m tests.faults $(FAULTS)

pristine: ## the demo and the tests on bare Debians with Python 3.11, 3.13 and 3.14; root, half an hour
	@$(PYTHON) -m tests.harness.packages chroots
	@$(PYTHON) -m tests.pristine $(ONLY)

check: lint types architecture prose ## lint, format, types, architecture, prose

lint: $(READY)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(READY)
	$(BIN)/mypy

prose:
	@$(PYTHON) tools/prose.py --check

architecture: $(READY)
	$(PYTEST) -q tests/architecture

docs: $(READY) ## build the documentation site into build/site, to be read from files
	@$(BIN)/python tools/site/build.py

release-check: $(READY) ## build, look into, install and describe the distributions; minutes, and the network
	@$(BIN)/python -m tests.clients.environment
	@$(BIN)/python -m tests.release

audit: ## known vulnerabilities of the pinned dependencies; needs the network
	@$(PYTHON) tools/audit.py

format: $(READY) ## let ruff correct what it can
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: bench-peers bench-pages ## measure everything on a quiet machine, and write the pages of benchmarks/; over an hour

bench-peers: $(READY) ## measure Hopback beside its peers, also on 4.0 and 4.3 (root): benchmarks/RESULTS.md; 40 minutes
	@$(BIN)/python -m tests.harness.packages rabbitmq postgresql c-client chroots
	$(BIN)/python -m benchmarks.start --write
	$(BIN)/python -m benchmarks.parts --write
	$(BIN)/python -m benchmarks.batches
	$(BIN)/python -m benchmarks; first=$$?; $(BIN)/python -m benchmarks --brokers 4.0,4.3 --main && exit $$first

bench-pages: $(READY) ## measure `hopback broker`, restarts and the service: the other pages of benchmarks/; 15 minutes
	@$(BIN)/python -m tests.harness.packages rabbitmq c-client
	$(BIN)/python -m benchmarks.server --write
	$(BIN)/python -m benchmarks.restarts
	$(BIN)/python -m benchmarks.admin --write
	$(BIN)/python -m benchmarks.admin --vhosts 50 --write
	$(BIN)/python -m benchmarks.admin_commands --write
	$(BIN)/python -m benchmarks.admin_scale --write

# Not $(READY): the environment cannot be made from pins that lack what pyproject.toml has newly.
pin: ## resolve the dependencies anew and pin them with their hashes; ARGS=--keep for the same versions
	@test -x $(BIN)/python || $(PYTHON) tools/environment.py
	@$(BIN)/python tools/pins.py $(ARGS)

clean: ## remove everything that make made
	rm -rf .venv .work build dist htmlcov .coverage .coverage.* .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
