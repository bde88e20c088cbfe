# Our own parsers under coverage guidance (atheris: Linux, Python 3.11 to 3.13), and the
# lane of a million mutated frames of each message type, which needs no atheris.
# Inputs that reached new code and findings are left in $(FUZZ_OUT).

FUZZ_STAMP := $(VENV)/.stamp-fuzz
FUZZ_OUT ?= build/fuzz
TIME ?= 10m

.PHONY: fuzz fuzz-million fuzz-corpus

$(FUZZ_STAMP): $(SETUP_STAMP)
	@$(PIP_INSTALL) -e '.[fuzz]'
	@touch $@

fuzz: $(FUZZ_STAMP) ## fuzz our own parsers on two cores; TIME=10m for all together
	OMP_NUM_THREADS=1 $(VENV_PYTHON) -m ds4proto_fuzz.parsers campaign \
	    --time $(TIME) --jobs 2 --out $(FUZZ_OUT)

fuzz-million: $(SETUP_STAMP) ## a million mutated frames of each message type; goes on where it was
	OMP_NUM_THREADS=1 $(VENV_PYTHON) -m ds4proto_fuzz.parsers million \
	    --jobs 2 --journal $(FUZZ_OUT)/million.jsonl

fuzz-corpus: $(SETUP_STAMP) ## rewrite fuzz/corpus from the seeds and what a campaign found
	$(VENV_PYTHON) -m ds4proto_fuzz.parsers corpus --more $(FUZZ_OUT)/corpus
