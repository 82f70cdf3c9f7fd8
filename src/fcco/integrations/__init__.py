"""fcco inside other training frameworks, a file each; ``import fcco`` imports none of them."""
