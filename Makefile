# Everything a contributor types. The steps themselves are in scripts/ and CMakeLists.txt.
PYTHON := .venv/bin/python
SOURCES := $(shell find CMakeLists.txt host_packages.cmake pyproject.toml README.md wire client loop podman environments pool launcher agent images \
             bindings docs -type f \
             -not -path '*/__pycache__/*' -not -name 'test_*.py' -not -name '*_test.cc' 2>/dev/null)

.PHONY: demo check test test-unit test-cells test-rungs test-faults nightly unit style bench security security-control compat \
        fuzz test-host wheels wheels-test lint format clean help install machine machine-format machine-lint machine-fuzz machine-test-host machine-wheels cpp
.DEFAULT_GOAL := help
ifeq ($(words $(MAKECMDGOALS)),1)  # several goals, such as `clean test`, are made one after another
MAKEFLAGS += --jobs=2  # what compiles the C++ twice, and what waits for the network, run beside each other
endif

demo: install ## Build everything, then show it: a real analysis in walled-off processes, latency, three attacks refused
	$(PYTHON) examples/demo.py

check: style unit ## What to run all day: format, lint, types, the unit tests beside the code

test: style cpp ## Build and run every test: C++ with sanitizers, typed Python, end to end, attacks, faults, documentation
	$(PYTHON) tests/fuzz/run.py --seconds 10
	$(PYTHON) tests/run.py

test-unit: style cpp ## A part of `make test`: style, types, C++ with sanitizers and fuzzing, and the Python tests beside the code
	$(PYTHON) tests/fuzz/run.py --seconds 10
	$(PYTHON) tests/run.py --part unit

test-cells: install ## A part of `make test`: what users do with calls and sessions, end to end, and the documentation
	$(PYTHON) tests/run.py --part cells

test-rungs: install ## A part of `make test`: attacks, and honest programs, on every rung
	$(PYTHON) tests/run.py --part rungs

test-faults: install ## A part of `make test`: what is killed, frozen, lost or full
	$(PYTHON) tests/run.py --part faults

nightly: install ## Run what takes hours: storm, soak, compat, security-control, fuzz, tidy, wheels, test-host, runc, torch; tests/nightly.md keeps how
	scripts/nightly

unit: cpp install
	ctest --test-dir build/sanitized --output-on-failure --no-tests=error --timeout 120 -j 4
	$(PYTHON) -m pytest -n 2 --dist loadfile -q bindings images/base images/environment

style: machine-format install
	scripts/style
	scripts/types

bench: install ## Measure latency, throughput, cold starts, memory and what one would pick instead; one table
	$(PYTHON) benchmarks/bench.py --json build/bench.json

security: install ## Run the attacks alone, and the harmless counterpart of each; a line for each area: held / tried
	$(PYTHON) -m pytest tests/security -q

compat: install ## Compare a program for each of many packages with a plain virtual environment; run clients that others wrote
	$(PYTHON) -m pytest tests/compat tests/outside -m "compat or not compat"

security-control: install ## Run each attack again with its wall taken down: it must then succeed (10 minutes)
	scripts/security-control

fuzz: cpp install ## Try ten million mutants of results, frames, messages and requests to the network on whoever reads them
	$(PYTHON) tests/fuzz/run.py --executions 10000000

test-host: machine-test-host install ## Boot stock Debians in qemu and try everything there as an ordinary user with delegated cgroups
	$(PYTHON) -m pytest tests/host -v -m "machine or not machine"

wheels: machine machine-wheels ## Build the wheels for x86_64 and aarch64, and the source distribution, into dist/ (half an hour the first time)
	scripts/wheels/build

wheels-test: wheels install ## Install the wheels into clean environments of every Python here, and use them; aarch64's under qemu
	$(PYTHON) -m pytest tests/wheels -v -m wheels

lint: machine-lint style ## Check style and types, and let clang-tidy read all of the C++ (20 minutes)
	scripts/tidy

format: machine-format install ## Rewrite the sources in the house style, and docs/api.md from the docstrings
	.venv/bin/ruff format .
	$(PYTHON) scripts/api_reference.py
	git ls-files '*.h' '*.cc' | xargs clang-format-19 -i

clean: ## Stop the agent and remove what was built (the store of environments stays)
	-.venv/bin/hutch agent stop
	rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

install: machine build/installed

machine:
	@scripts/prepare

machine-format:
	@scripts/prepare format

machine-lint:
	@scripts/prepare lint

machine-fuzz:
	@scripts/prepare fuzz

# One build with sanitizers serves the C++ tests and the fuzzer.
cpp: .venv/requirements-build.sum machine-fuzz
	cmake -S . -B build/sanitized -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=clang++-19 -DHUTCH_TESTS=ON \
	  -DHUTCH_SANITIZE=ON -DHUTCH_FUZZ=ON -DHUTCH_PYTHON=OFF -DHUTCH_UNITY=ON -DPython_EXECUTABLE=$(CURDIR)/$(PYTHON) >/dev/null
	scripts/commands
	cmake --build build/sanitized

machine-wheels:
	@scripts/prepare wheels

machine-test-host:
	@scripts/prepare test-host

.venv/requirements-build.sum: scripts/requirements-build.txt scripts/tools | machine
	scripts/tools build

.venv/requirements.sum: scripts/requirements.txt .venv/requirements-build.sum
	scripts/tools

build/installed: $(SOURCES) scripts/install .venv/requirements.sum | machine
	scripts/install
	@mkdir -p build && touch $@
