# Every planted fault of ds4proto_fuzz.mutants has to be found; minutes, not seconds.
.PHONY: fuzz-planted
fuzz-planted: $(SETUP_STAMP) ## find every planted fault in the faulty peers
	OMP_NUM_THREADS=1 $(VENV_PYTHON) -m ds4proto_fuzz.planted

.PHONY: fuzz-cluster
fuzz-cluster: $(SETUP_STAMP) ## try the ray runner on a local cluster (installs ray)
	@$(PIP_INSTALL) -e '.[cluster]'
	$(VENV_PYTHON) -m pytest tests/fuzz/live/lane_cluster.py -W "ignore"
