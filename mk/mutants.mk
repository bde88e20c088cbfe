.PHONY: mutants
mutants: $(SETUP_STAMP) ## run every case against every planted fault, write the matrix
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(VENV_PYTHON) -m ds4proto_conformance.kill \
	    --out conformance/mutants/report.json --page conformance/mutants/README.md
