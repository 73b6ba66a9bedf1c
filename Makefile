# Two commands: `make run` sets up and serves, `make test` sets up and passes. All else is for people who work on redrive.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes
PYTEST := $(BIN)/python -m pytest
# Tests start hundreds of processes, and each would compile redrive anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run demo test check tests coverage bench proof soak pictures docs format proto lock dist pythons newcomer clean
.DEFAULT_GOAL := help

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk 'BEGIN {FS = ":.*## "} {printf "  make %-9s %s\n", $$1, $$2}'

run: $(RUNS)  ## set up and serve on http://127.0.0.1:8086 with SQLite, a sample application and all systems
	@HTTP_TRUST_LOOPBACK=$${HTTP_TRUST_LOOPBACK:-true} REDRIVE_SYSTEMS=$${REDRIVE_SYSTEMS:-all} $(BIN)/redrive serve --app examples.sample:app

demo: $(RUNS)  ## the same with sample traffic in demo.db: flaky destinations, poison, an outage that heals
	@rm -f demo.db demo.db-wal demo.db-shm
	@HTTP_TRUST_LOOPBACK=$${HTTP_TRUST_LOOPBACK:-true} DATABASE_URL=$${DATABASE_URL:-sqlite:///demo.db} $(BIN)/python -m examples.demo

test: $(READY)  ## set up, check and test everything, real servers included
	@$(MAKE) --no-print-directory --jobs 2 check tests

check: $(READY)  ## style, types, import laws and the template for AWS
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/cfn-lint deploy/aws/template.yaml

tests: $(READY)  ## the tests alone
	@$(BIN)/python -W ignore -m bench.servers
	@$(BIN)/python tests/browser/chromium.py
	@# In a fresh clone once before: the processes would otherwise compile the same files at the same time.
	@[ -d .pytest_cache ] || $(PYTEST) tests --collect-only -qq -o python_functions=none_of_them >/dev/null 2>&1 || true
	@# One more than cores, since some of the tests wait. Each more would start servers of its own and prepare what others have prepared.
	$(PYTEST) tests --numprocesses 3 --dist worksteal

coverage: $(READY)  ## which lines the tests reach; half as long again as the tests alone
	@rm -f .coverage .coverage.*
	$(PYTEST) tests --ignore tests/faults --numprocesses 2 --cov --cov-report term --cov-fail-under 90

bench: $(READY)  ## redrive beside its peers and the raw limit, in one run; needs a quiet machine
	$(BIN)/python -W ignore -m bench.every

proof: $(READY)  ## try every promise on real processes and print the figures; PROOF=short takes minutes
	$(BIN)/python -W ignore -m proof

soak: $(READY)  ## all tests in every home, and some of them with hundreds of kills and millions of rows
	REDRIVE_TEST_WIDE=1 $(PYTEST) tests --numprocesses 4 --dist worksteal
	REDRIVE_TEST_ROUNDS=600 REDRIVE_TEST_ROWS=1000000 REDRIVE_SIMULATION_SEEDS=1000 REDRIVE_TEST_EXAMPLES=1000 $(PYTEST) tests/core tests/faults tests/engine tests/ledgers/sql/test_plans.py -o timeout=3600

pictures: $(READY)  ## make the pictures of the docs anew, from the pages in a real browser
	REDRIVE_TEST_WIDE=1 REDRIVE_TEST_PICTURES=1 $(PYTEST) tests/browser/test_looks.py -k picture

docs:  ## build the site of the docs into build/site, with search and an API reference, and follow every link
	@$(PYTHON) -m bench.site

format: $(READY)  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(READY)  ## make the Python code of the relay's contract
	$(BIN)/python -m grpc_tools.protoc --proto_path=src --python_out=src --pyi_out=src src/redrive/systems/relay/relay.proto

lock: $(READY)  ## choose new versions for requirements.lock
	$(BIN)/pip install --quiet uv
	@# redrive-service is made of this very tree: nobody else's versions hang on it, and no index may have it yet.
	@mkdir -p build/lock && sed 's/"redrive-service==[^"]*", *//' pyproject.toml > build/lock/pyproject.toml
	cd build/lock && ../../$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
		--all-extras --group dev pyproject.toml -o ../../requirements.lock
	cd build/lock && ../../$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		-c ../../requirements.lock --group build --extra postgres --extra service --extra rabbitmq --extra commands --extra traces --extra uvloop \
		pyproject.toml -o ../../requirements-run.lock

dist: $(READY)  ## build all wheels and sdists, follow the tutorial, serve and call with them in empty environments, list what comes with it (SBOM)
	$(BIN)/python -m bench.dist

pythons:  ## the tests on every Python that redrive claims, and on later ones where installed: PYTHONS="path …" for those not on the PATH, TESTS="tests/core …" for less
	@$(PYTHON) -m bench.pythons

newcomer:  ## from clone to the first retry seen, in an empty folder with an empty HOME: how long it takes
	@$(PYTHON) bench/newcomer.py

clean:  ## forget the virtual environment and all that was built
	rm -rf $(VENV) build dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): requirements.lock $(RUNS)
	@echo "installing what tests need (once, about a minute)"
	@# Unpacking keeps one core busy, so each of two installs every other package: all are named with their hashes, and none asks for another.
	@awk '/^[^ #]/ {n++} {print > ("$(VENV)/lock-" n % 2)}' requirements.lock
	@$(INSTALL) -r $(VENV)/lock-0 & $(INSTALL) -r $(VENV)/lock-1; second=$$?; wait $$! && exit $$second
	@touch $@

# What `make run` needs and no more: a third of the packages.
$(RUNS): requirements-run.lock pyproject.toml client/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "redrive needs Python 3.11 or later: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv --clear $(VENV) 2>/dev/null || { rm -rf $(VENV); $(MAKE) --no-print-directory python-venv; $(PYTHON) -m venv $(VENV); }
	@# An older pip does it too, in more than twice the time; and the lock names all that is needed.
	@$(BIN)/pip install --quiet --disable-pip-version-check 'pip>=25' || true
	@awk '/^[^ #]/ {n++} {print > ("$(VENV)/lock-" n % 2)}' requirements-run.lock
	@$(INSTALL) -r $(VENV)/lock-0 & $(INSTALL) -r $(VENV)/lock-1; second=$$?; wait $$! && exit $$second
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable client
	@touch $@

# Debian's python3 comes without venv.
.PHONY: python-venv
python-venv:
	@echo "installing python3-venv"
	@SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq python3-venv >/dev/null
