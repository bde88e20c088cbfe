.PHONY: mutants
mutants: $(SETUP_STAMP) ## run every case against every planted fault, write the matrix
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(VENV_PYTHON) -m ds4proto_conformance.kill \
	    --out conformance/mutants/report.json --page conformance/mutants/README.md

# Timing decides some verdicts on a busy machine, so these are a lane of their own.
.PHONY: test-kills
test-kills: $(SETUP_STAMP) ## sound small peers pass everything, planted faults are caught
	$(VENV_PYTHON) -m pytest tests/conformance/lane_kills.py -W "ignore::pytest.PytestUnraisableExceptionWarning"
