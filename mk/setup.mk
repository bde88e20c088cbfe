# Installing into $(VENV). Set PYTHON to choose the interpreter of a new environment.

PYTHON ?=
PIP_INSTALL = $(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt
INSTALLED_FROM := pyproject.toml constraints.txt

.PHONY: setup setup-runtime
setup: $(SETUP_STAMP) ## install the library and the tools of development (no torch)
setup-runtime: $(RUNTIME_STAMP) ## the same and the reference runtime (torch)

$(VENV_PYTHON):
	@sh mk/make_venv.sh "$(VENV)" "$(PYTHON)"

$(CORE_STAMP): $(INSTALLED_FROM) | $(VENV_PYTHON)
	@echo "Installing ds4proto into $(VENV)"
	@$(PIP_INSTALL) -e '.[fast]'
	@touch $@

$(SETUP_STAMP): $(INSTALLED_FROM) | $(VENV_PYTHON)
	@echo "Installing ds4proto and its development tools into $(VENV)"
	@$(PIP_INSTALL) -e '.[fast,conformance,dev]'
	@touch $(CORE_STAMP) $@

$(RUNTIME_STAMP): $(SETUP_STAMP)
	@echo "Installing the reference runtime into $(VENV) (torch is large)"
	@$(PIP_INSTALL) -e '.[fast,conformance,dev,runtime,plot,crosscheck]'
	@touch $@
