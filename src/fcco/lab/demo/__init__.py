"""`fcco demo`: what the library is for, on embedded data: a rare class, and the paper's methods side by side."""
