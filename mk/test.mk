.PHONY: test
test: $(RUNTIME_STAMP) ## run the tests (installs torch for the runtime)
	$(VENV_PYTHON) -m pytest tests
