"""A working ds4 peer on torch: engines, pipeline and tensor parallelism."""
