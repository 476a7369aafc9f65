# Each target works in a fresh clone, and repeats only the steps whose inputs have changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := -c constraints.txt
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check $(CONSTRAINTS)
# The environment depends on these two files only, because the package is installed in editable mode.
PINS := pyproject.toml constraints.txt

# The page of the HTML view is written in JavaScript. Without npm its checks are skipped, except by .ci/run.
PAGE := $(if $(shell command -v npm),page,no-page)

CASES ?= 20000
# Tests of one file share their models, so a file stays in one process. Left to itself, pytest-xdist runs the files with
# the fewest tests last, and some of these take long; tests/conftest.py knows the order.
XDIST := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Without bytecode, each process compiles Filch anew, and pytest rewrites the assertions of all of it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-versions test-fleet fuzz lint fix docs coverage bench budgets museum corpus gpu clean \
	test-page lint-page fix-page test-no-page lint-no-page fix-no-page

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed ## record, export and compare a tiny language model
	$(BIN)/filch demo

test: test-$(PAGE) $(VENV)/.installed-test ## run the tests; `make test ARGS="-k dump"` runs some of them
	$(BIN)/python -m pytest $(XDIST) $(ARGS)

test-versions: ## run the tests with the lowest, the pinned and the newest versions, for docs/versions.md
	$(PYTHON) tools/versions.py $(ARGS)

test-fleet: $(VENV)/.installed-fleet ## run fleets on Ray and submitit, whose nodes and jobs are killed
	$(BIN)/python -m pytest -m fleet tests/compare/fleet $(ARGS)

fuzz: $(VENV)/.installed-test ## read 20,000 damaged dumps; `make fuzz CASES=100000` reads more
	FILCH_FUZZ_CASES=$(CASES) $(BIN)/python -m pytest tests/steal/dump/test_fuzz.py --log-cli-level=INFO --log-cli-format='%(message)s'

lint: lint-$(PAGE) $(VENV)/.installed-lint ## check style, types and import contracts
	@failed=0; for check in "ruff check ." "ruff format --check ." mypy \
		"basedpyright --pythonpath $(BIN)/python" lint-imports; do \
		echo "$(BIN)/$$check"; $(BIN)/$$check || failed=1; \
	done; exit $$failed

fix: fix-$(PAGE) $(VENV)/.installed-lint ## fix what ruff, eslint and prettier can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs ## build the documentation into build/docs; any warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html -d build/doctrees docs build/docs
	@echo build/docs/index.html

test-page lint-page fix-page: %-page: page/node_modules/.installed
	cd page && npm run --silent $*

test-no-page lint-no-page fix-no-page:
	@echo "skipped: the tests and checks of the HTML view's page need node 20.19 or newer and npm"

coverage: $(VENV)/.installed-test ## list the lines that no test runs; fail below the floor in pyproject.toml
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(XDIST) $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

bench: $(VENV)/.installed-test ## repeat the measurements of docs/evidence.md
	@set -e; for script in benchmarks/[!_]*.py; do echo "$$script"; $(BIN)/python "$$script"; done

budgets: $(VENV)/.installed-test ## measure again what commands cost, and compare it with benchmarks/budgets.toml
	$(BIN)/python benchmarks/budgets.py $(ARGS)

museum: $(VENV)/.installed-test ## ask about bugs that others reported; answers that are known are kept
	$(BIN)/python benchmarks/museum $(ARGS)

corpus: $(VENV)/.installed-test ## ask about published ONNX files and pairs; answers that are known are kept
	$(BIN)/python benchmarks/corpus $(ARGS)

# With another BIN, the packages that are there are used, and nothing is installed.
gpu: $(if $(filter $(VENV)/bin,$(BIN)),$(VENV)/.installed-test) ## run the tests and benchmarks for a GPU, and write benchmarks/GPU.md
	$(BIN)/python benchmarks/gpu $(ARGS)

clean: ## remove everything that make has created, including the environment
	rm -rf $(VENV) page/node_modules build dist demo .coverage* .*_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp file, because an interrupted `python -m venv` leaves a Python without pip.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Filch needs Python 3.11 or newer, and {sys.executable} is {sys.version.split()[0]}: run make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: $(PINS) | $(VENV)/.made
	$(INSTALL) -e '.[onnxruntime-gpu]'
	touch $@

$(VENV)/.installed-test: $(PINS) | $(VENV)/.made
	$(INSTALL) -e '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-lint: $(PINS) | $(VENV)/.made
	$(INSTALL) -e '.[dev,lint]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(VENV)/.installed-fleet: $(PINS) | $(VENV)/.made
	$(INSTALL) -e '.[dev,ray,slurm]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(VENV)/.installed-docs: $(PINS) | $(VENV)/.made
	$(INSTALL) -e '.[onnxruntime-gpu,docs]'
	touch $@ $(VENV)/.installed

page/node_modules/.installed: page/package.json page/package-lock.json
	cd page && npm ci --silent
	touch $@
