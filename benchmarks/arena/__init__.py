"""The arena: fcco.fit beside what else there is for tables, rankings and images, on the same splits."""
