"""The project's own tools: generated pages and snapshots."""
