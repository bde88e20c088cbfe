"""What fewer bits on the wire cost: measured on a model and a text of the user's."""
