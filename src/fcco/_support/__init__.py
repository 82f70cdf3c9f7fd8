"""What everything stands on: checks, ranks, random state, interrupts."""
