"""Applications of online data streaming."""
