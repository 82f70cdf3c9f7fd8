"""Literal step-by-step transcriptions of the update rules, used as oracles. They import nothing of fcco."""
