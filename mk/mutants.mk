# Rows of a stopped run; `make mutants` goes on with them.
MUTANT_ROWS ?= build/mutants.jsonl

.PHONY: mutants mutants-fresh
mutants: $(SETUP_STAMP) ## run every case against every planted fault, write the matrix
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(VENV_PYTHON) -m ds4proto_conformance.kill \
	    --rows $(MUTANT_ROWS) \
	    --out conformance/mutants/report.json --page conformance/mutants/README.md
mutants-fresh: ## the same from nothing: after changes of benches, small peers, library
	rm -f $(MUTANT_ROWS)
	$(MAKE) mutants

.PHONY: test-kills
test-kills: $(SETUP_STAMP) ## sound small peers pass everything, planted faults are caught
	$(VENV_PYTHON) -m pytest tests/conformance/test_kills.py tests/conformance/test_matrix.py
