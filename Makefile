# Every target creates its requirements on first use, above all a virtual environment in .venv. It needs
# only make and Python 3.11 or newer. `make help` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# For a machine of two cores: three workers run computing tests, which also wait for servers, and two run
# waiting tests (tests/harness/lanes.py). They keep both cores busy for 90 % of the time. A sixth worker would
# spend another 8 s on the collection of all tests.
WORKERS ?= 5
PYTEST := $(BIN)/python -m pytest
# Container images set it. The tests start hundreds of processes, and each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# The tests that reach every branch of the pure parts. Only they run under coverage, which nearly doubles the cost.
PURE := tests/unit/topology tests/unit/topology_check tests/unit/policy tests/unit/designs \
	$(patsubst %,tests/unit/runtime/test_%.py,feeding delays early_delays misspelt raised_outcomes raw_parking) \
	tests/unit/ops/brokers/test_discovery.py tests/unit/ops/brokers/test_classification.py \
	$(patsubst %,tests/properties/test_%.py,decide raw_redrive redriver routing)
FAST := tests/unit tests/properties tests/scenarios tests/conformance
CODE := src tests tools $(wildcard benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help demo test test-packages test-needs test-modules test-pure test-fast test-brokers test-pages test-peers test-faults \
	pristine check lint types architecture prose docs release-check audit format bench bench-peers bench-pages bench-systems pin clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; \
	do printf '  make %-13s %s\n' "$$name" "$$text"; done

$(READY): pyproject.toml $(wildcard tools/pins/*.txt) tools/environment.py
	@$(PYTHON) tools/environment.py

demo: $(READY) ## run the five documented systems (BROKER=amqp://… for a RabbitMQ, ARGS=… for options)
	@HOPBACK_BROKER="$(BROKER)" $(BIN)/hopback demo $(ARGS)

# Only these steps of the tests need the network, and root if packages are missing. The first needs no
# environment, so packages are installed while the environment is created.
test-packages:
	@$(PYTHON) -m tests.harness.packages rabbitmq postgresql browser c-client node-client commands

test-needs: $(READY) test-packages ## install the requirements of the tests: Debian packages, clients of other projects
	@$(BIN)/python -m tests.clients.environment

# Compiles the modules of all tests. Otherwise all workers would compile them at the same time.
test-modules: $(READY)
	@$(PYTEST) -q --collect-only >/dev/null

test-pure: $(READY)
	$(PYTEST) -q -n 2 $(PURE) \
		--cov=hopback.topology --cov=hopback.policy --cov-branch \
		--cov-report=term-missing:skip-covered --cov-fail-under=100

# Runs packages, types and other checks in parallel, so that both cores are in use.
test: ## run all checks and all tests, including RabbitMQ, as CI does
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=line test-needs types lint test-modules architecture test-pure
	$(BIN)/python -m tests.harness.alone -n $(WORKERS) --dist loadgroup $(patsubst %,--ignore=%,tests/architecture $(PURE))

test-fast: $(READY) ## run unit and property tests, without network, in less than a minute
	$(PYTEST) -n 2 -q -m "not broker and not slow and not socket and not clients" \
		-p no:schemathesis --hypothesis-profile=quick $(wildcard $(FAST))

test-brokers: $(READY) ## run the conformance suite also on RabbitMQ 4.0 and 4.3 (minutes, root)
	@$(BIN)/python -m tests.harness.packages rabbitmq chroots
	$(BIN)/python -m tests.harness.versions
	$(PYTEST) -n $(WORKERS) --dist loadgroup tests/conformance --all-brokers
	$(PYTEST) -m all_brokers tests/integration tests/faults tests/frameworks --all-brokers

test-pages: $(READY) ## test every action with every selection in a browser, on RabbitMQ (five minutes)
	@$(BIN)/python -m tests.harness.packages rabbitmq browser
	HOPBACK_ALL_CELLS=1 $(PYTEST) -n 2 tests/acceptance/ops/test_selection_matrix.py

test-peers: $(READY) ## run other projects' tests on `hopback broker` and RabbitMQ (over an hour, root, network)
	@$(BIN)/python -m tests.harness.packages rabbitmq peers
	$(BIN)/python -m tests.peers $(PEERS)

test-faults: $(READY) ## run faults, load and bad input (an hour, root for network cuts of a cluster)
	@$(BIN)/python -m tests.harness.packages rabbitmq postgresql cluster
	$(BIN)/python -m tests.faults $(FAULTS)

pristine: ## run demo and tests on bare Debians with Python 3.11, 3.13 and 3.14 (half an hour, root)
	@$(PYTHON) -m tests.harness.packages chroots
	@$(PYTHON) -m tests.pristine $(ONLY)

check: lint types architecture prose ## check lint, format, types, architecture and prose

lint: $(READY)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(READY)
	$(BIN)/mypy

prose:
	@$(PYTHON) tools/prose.py --check

architecture: $(READY)
	$(PYTEST) -q tests/architecture

docs: $(READY) ## build the documentation site in build/site, readable from files
	@$(BIN)/python tools/site/build.py

release-check: $(READY) ## build, inspect and install the distributions and write their SBOM (minutes, network)
	@$(BIN)/python -m tests.clients.environment
	@$(BIN)/python -m tests.release

audit: ## check the pinned dependencies for known vulnerabilities (network)
	@$(PYTHON) tools/audit.py

format: $(READY) ## format and fix with ruff
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: bench-peers bench-pages ## measure everything on a quiet machine and write the pages of benchmarks/ (over an hour)

bench-peers: $(READY) ## measure Hopback and its peers, also on 4.0 and 4.3: benchmarks/RESULTS.md (40 minutes, root)
	@$(BIN)/python -m tests.harness.packages rabbitmq postgresql c-client chroots
	$(BIN)/python -m benchmarks.start --write
	$(BIN)/python -m benchmarks.parts --write
	$(BIN)/python -m benchmarks.batches
	$(BIN)/python -m benchmarks; first=$$?; $(BIN)/python -m benchmarks --brokers 4.0,4.3 --main && exit $$first

bench-pages: $(READY) ## measure `hopback broker`, restarts and the service: other pages of benchmarks/ (15 minutes)
	@$(BIN)/python -m tests.harness.packages rabbitmq c-client
	$(BIN)/python -m benchmarks.server --write
	$(BIN)/python -m benchmarks.restarts
	$(BIN)/python -m benchmarks.admin --write
	$(BIN)/python -m benchmarks.admin --vhosts 50 --write
	$(BIN)/python -m benchmarks.admin_commands --write
	$(BIN)/python -m benchmarks.admin_scale --write

bench-systems: $(READY) ## load the five systems on 3.10 and 4.3: benchmarks/SYSTEMS.md (over three hours, root, continues after an interruption)
	@$(BIN)/python -m tests.harness.packages rabbitmq postgresql chroots
	$(BIN)/python -m benchmarks.systems --resume

# Not $(READY): the environment cannot be created from pins that lack a new requirement of pyproject.toml.
pin: ## resolve the dependencies and pin them with hashes (ARGS=--keep for the same versions)
	@test -x $(BIN)/python || $(PYTHON) tools/environment.py
	@$(BIN)/python tools/pins.py $(ARGS)

clean: ## remove all files that make created
	rm -rf .venv .work build dist htmlcov .coverage .coverage.* .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
