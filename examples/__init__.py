"""Examples. Each reads top to bottom and runs from the repository's root."""
