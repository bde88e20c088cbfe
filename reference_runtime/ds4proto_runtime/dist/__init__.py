"""A compressed pipeline wire on ``torch.distributed``: one stage a process."""
