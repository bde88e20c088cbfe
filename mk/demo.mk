.PHONY: demo
demo: $(CORE_STAMP) ## decode two real runs and verify the codecs
	$(VENV)/bin/ds4proto demo

.PHONY: demo-quality
demo-quality: $(RUNTIME_STAMP) ## measure what wire formats cost a small model (a plumbing check)
	$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -e '.[plot]'
	OMP_NUM_THREADS=1 $(VENV)/bin/ds4proto quality --model tests/data/tiny-moe-3m-q8_0.gguf \
	    --text README.md --boundaries 1,3,7 --windows 4 --window 128 --prompts 2 \
	    --continuation 64 --questions 8 --out build/quality
