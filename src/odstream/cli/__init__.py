"""Commands. Each imports what it needs when it is called."""
