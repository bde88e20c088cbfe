# A benchmark is a module bench/NAME.py; alone: python -m bench.NAME --json
# bench/gpu.py wants a CUDA device and is left to bench/gpu.sh.

BENCHMARKS := $(patsubst bench/%.py,%,$(filter-out bench/_%.py bench/gpu.py,$(wildcard bench/*.py)))

.PHONY: bench
bench: $(SETUP_STAMP) ## run every benchmark
	@test -n "$(strip $(BENCHMARKS))" || { echo "bench/ has no benchmarks" >&2; exit 2; }
	@failed=""; for name in $(sort $(BENCHMARKS)); do \
	    echo "== bench.$$name"; \
	    $(VENV_PYTHON) -m bench.$$name || failed="$$failed $$name"; \
	done; \
	test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }
