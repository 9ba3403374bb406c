"""Shipped tasks. Each needs the extra of its name."""
