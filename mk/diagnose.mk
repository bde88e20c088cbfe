# Every fault of the catalogue between two reference peers; two to four minutes. The
# times of injected delays count, so that a busy machine can turn a row.

.PHONY: diagnose-faults
diagnose-faults: $(RUNTIME_STAMP) ## inject faults, diagnose them, write the table in docs/diagnosis.md
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(VENV_PYTHON) \
	    -m tests.trace.diagnosis.lane_faults --write docs/diagnosis.md
