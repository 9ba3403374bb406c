"""Who makes episodes. Knows nothing of the cache and never imports torch."""
