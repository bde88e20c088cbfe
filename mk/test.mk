.PHONY: test
test: $(SETUP_STAMP) ## run the tests
	$(VENV_PYTHON) -m pytest tests
