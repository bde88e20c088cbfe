.PHONY: demo
demo: $(CORE_STAMP) ## decode two real runs and verify the codecs
	$(VENV)/bin/ds4proto demo
