# Two ranks over real verbs (soft-RoCE) in a small virtual machine; see docs/rdma.md.
# Linux with apt alone. It takes one to three minutes, more on a busy machine.

RDMA_OUT ?= build/rdma

.PHONY: test-rdma
test-rdma: $(SETUP_STAMP) ## run two ranks over soft-RoCE in a virtual machine
	sh tests/rdma_vm/lane.sh $(VENV_PYTHON) $(RDMA_OUT)
