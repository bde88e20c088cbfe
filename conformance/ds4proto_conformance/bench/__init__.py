"""The other side of each peer: what cases talk through."""
