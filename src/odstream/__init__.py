"""Online data streaming: train on trajectories while they are still being produced.

Importing this package imports nothing heavy. Public names live in the modules that own them:
``odstream.engine``, ``odstream.datasets``, ``odstream.configuration``, ``odstream.runtime``.
"""

__version__ = "0.1.0.dev0"
