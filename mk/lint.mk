# `make -k lint` shows the findings of every part, not of the first that fails.

.PHONY: lint lint-style lint-types lint-imports lint-lengths lint-clauses lint-spec format readme
lint: lint-style lint-types lint-imports lint-lengths lint-clauses lint-spec ## check style, types, imports, clauses

lint-style: $(SETUP_STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# Without torch its decorators and classes are Any, and strict types cannot be judged.
lint-types: $(RUNTIME_STAMP)
	$(VENV)/bin/mypy

lint-imports: $(SETUP_STAMP)
	$(VENV)/bin/lint-imports

lint-lengths: $(SETUP_STAMP)
	$(VENV_PYTHON) mk/file_lengths.py

# The register of clauses checks itself where this tree has one.
lint-clauses: $(SETUP_STAMP)
ifneq ($(wildcard ds4proto/clauses.py ds4proto/clauses/__main__.py),)
	$(VENV_PYTHON) -m ds4proto.clauses check
endif

# Generated tables, clauses and dissectors of spec/ are those of the declarations.
lint-spec: $(SETUP_STAMP)
	$(VENV_PYTHON) -m ds4proto spec check

format: $(SETUP_STAMP) ## let ruff rewrite the style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

readme: $(SETUP_STAMP) ## rewrite the table of commands in README.md
	$(VENV_PYTHON) mk/readme_table.py --write
