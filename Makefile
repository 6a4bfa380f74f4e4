# Every command of the project, for a person and for CI alike; `make` alone lists them.

VENV := .venv
ENGINE := .venv-engine
PYTHON := $(VENV)/bin/python
SPL_PATH := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak engine escape bench matrix lint format docs claims requirements sbom release clean

help: ## list these targets
	@sed -n 's/^\([a-z]*\):[^#]*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
		printf '%-14s %s\n' "$$target" "$$text"; done

setup: ## install what is needed: system packages (as root), the virtual environment, spl on the PATH
	@sh requirements/setup.sh

demo: setup ## run one confined work loop in a throw-away home and print its receipt and outcome
	@$(SPL_PATH) sh docs/demo.sh
	@sh requirements/setup.sh where

test: setup lint ## check everything: lint, then all tests
	$(PYTHON) -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

soak: setup ## long and hostile use of both shapes: runs, kills, crashes, load, bad input, a long log; writes docs/soak.md (as root)
	CI=1 $(PYTHON) -m pytest -s tests/end_to_end/soak.py

engine: setup $(ENGINE)/.installed ## runs with a real small model behind llama.cpp's server, in both shapes; writes docs/engine.md (as root)
	CI=1 $(PYTHON) -m pytest -s tests/end_to_end/engine.py

# In a place of its own: 220 MB that nothing else needs.
$(ENGINE)/.installed: requirements/engine.txt | setup
	$(PYTHON) -m venv --clear $(ENGINE)
	$(ENGINE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--require-hashes -r requirements/engine.txt
	touch $@

escape: setup ## make every attempt to escape, and take each layer away, in both shapes; writes escape/report.json (as root)
	$(VENV)/bin/spl escape run -o table --save escape/report.json
	$(PYTHON) -m tests.pages

bench: setup ## measure what confinement and judgment cost on this host; writes docs/performance.md (as root, with nothing else going on)
	$(PYTHON) -m tests.performance_page

matrix: setup ## try the wheel, and much of the suite, on each Python that is here; writes docs/matrix.md (as root)
	$(PYTHON) -m tests.packaging.matrix

lint: setup ## check style, types and the arrows between the rooms
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

format: setup ## rewrite the code in the project's style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: setup ## regenerate the pages of docs/ that are made from the code
	$(PYTHON) -m tests.pages

claims: docs ## the same: docs/claims.md is one of those pages

requirements: ## recompile the pins; ARGS=--upgrade moves them to the newest releases; and sbom
	@sh requirements/compile.sh $(ARGS)

sbom: ## write what the pins come to, with their licences, into requirements/sbom.cdx.json
	@sh requirements/compile.sh sbom

release: setup ## build wheel, sdist and their sums into dist/; refused unless all that a release promises is so
	@$(PYTHON) requirements/release.py

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) $(ENGINE) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
