"""Who makes episodes: the seam between producers and everything else. Knows nothing of the cache.

Importing this package imports numpy and nothing heavier. Gymnasium producers live in `odstream.producers.environment`,
demonstration segments in `odstream.producers.demo`.
"""

from odstream.producers.base import (
    Episode,
    FieldKey,
    FieldSpec,
    Producer,
    ProducerContext,
    ProducerFactory,
    RolloutSpec,
    Segment,
    Staging,
)

__all__ = [
    "Episode",
    "FieldKey",
    "FieldSpec",
    "Producer",
    "ProducerContext",
    "ProducerFactory",
    "RolloutSpec",
    "Segment",
    "Staging",
]
