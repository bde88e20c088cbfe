# The page of a capture in a real browser; needs Chromium. See docs/pictures.md.

.PHONY: test-pictures
test-pictures: $(SETUP_STAMP) ## open the page of 100,000 frames in headless chromium
	$(VENV_PYTHON) -m pytest -s tests/trace/pictures/lane_browser.py
