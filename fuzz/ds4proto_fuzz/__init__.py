"""Does a ds4 peer survive? Generators, targets and reduction of findings."""
