"""The cases, one file a topic. ``registry.load_cases`` imports all of them."""
