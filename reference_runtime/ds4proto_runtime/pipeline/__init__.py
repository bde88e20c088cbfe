"""The pipeline runtime: a coordinator and workers that drive the DS4D machines."""
