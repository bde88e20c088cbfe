"""Pipeline peers under fire: workers and coordinators (DS4D)."""
