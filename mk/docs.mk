# The specification as a site, and the checks of derived artefacts that need tools of
# others: a browser, scapy (GPL-2.0-only, kept apart), the Kaitai compiler (npm).

DOCS_STAMP := $(VENV)/.stamp-docs
SITE := build/site
SCAPY_ONLY := $(VENV)/scapy-only
KAITAI_ONLY := $(VENV)/kaitai-only

.PHONY: docs docs-check test-scapy test-kaitai test-dissector

$(DOCS_STAMP): $(SETUP_STAMP)
	@$(PIP_INSTALL) -e '.[docs]'
	@touch $@

docs: $(DOCS_STAMP) ## build the site of the specification in build/site
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet --site-dir $(SITE)

docs-check: docs ## look at the site in headless chromium: anchors, phone and desktop
	$(VENV_PYTHON) docs/check_site.py $(SITE)

test-scapy: $(SETUP_STAMP) ## test the scapy layers (fetches scapy, GPL-2.0-only)
	@$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check \
	    --upgrade --target $(SCAPY_ONLY) 'scapy>=2.6'
	PYTHONPATH=$(SCAPY_ONLY) $(VENV_PYTHON) -m pytest tests/emit/scapy_case.py -W ignore

test-kaitai: $(SETUP_STAMP) ## compile the Kaitai descriptions and read real bytes (needs npm)
	@$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check \
	    --upgrade --target $(KAITAI_ONLY) kaitaistruct
	@npm install --silent --no-audit --no-fund --prefix $(KAITAI_ONLY)/npm \
	    kaitai-struct-compiler js-yaml
	PYTHONPATH=$(KAITAI_ONLY) DS4PROTO_KSC=$(abspath $(KAITAI_ONLY))/npm/node_modules \
	    $(VENV_PYTHON) -m pytest tests/emit/test_kaitai.py

test-dissector: $(SETUP_STAMP) ## compare tshark with the decoder on every capture
	DS4PROTO_ALL_CAPTURES=1 $(VENV_PYTHON) -m pytest tests/emit/test_lua.py
