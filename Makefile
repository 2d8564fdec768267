# Shorthands; the scripts are the real thing and take arguments.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all format lock docs bench build clean

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv from requirements.lock
	@./scripts/setup

demo: ## Run the bundled example on an embedded Postgres
	@./scripts/demo

test: ## Every check, without what is marked slow
	@./scripts/test

test-all: ## Every check, as CI runs them
	@./scripts/test --all

format: setup ## Let ruff format and fix what it can
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

lock: ## Write requirements.lock anew (needs uv); all pins move with ARGS=--upgrade
	@./scripts/lock $(ARGS)

docs: setup ## Write the generated tables in docs/, and the columns of the models, anew
	@.venv/bin/python scripts/columns.py
	@.venv/bin/python scripts/docs.py --plans

bench: setup ## Measure the worker beside bare pgbench (a quarter of an hour; less with ARGS=--quick)
	@.venv/bin/python scripts/bench/queue.py $(ARGS)

build: setup ## Build the sdist and the wheel into dist/
	@.venv/bin/python -m build --no-isolation

clean: ## Remove what the tools leave behind; .venv and .qwf stay
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
