"""Process-shared storage of complete episodes. Knows frames, not environments or learners."""
