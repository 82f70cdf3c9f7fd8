"""Data, models, training and reports around the fcco core (extra `[lab]`)."""
