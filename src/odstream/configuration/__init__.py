"""Plan reuse, cache size and pacing from two measured rates. Imports the standard library only.

One selection is one chunk drawn from one episode. It is neither a pass over the episode nor a frame. Letters:

- ``g`` accepted episodes per active production second, ``t`` completed chunks per active learner second
- ``B`` batch size, ``P`` producer environments, ``K`` chunks per episode, ``C`` episodes in the cache
- ``L_safe`` seconds until a refill's first publication, safety factor included
- ``M`` bytes allowed for episodes, ``E`` bytes per episode
"""

from odstream.configuration.measurement import (
    ODSRateMeasurementCfg,
    ODSThroughputMeasurement,
    measure_ods_throughput,
)
from odstream.configuration.planner import (
    ODSConfiguration,
    ODSReuseProfileCfg,
    ODSRuntimeCfg,
    configure_ods,
)

__all__ = [
    "ODSConfiguration",
    "ODSRateMeasurementCfg",
    "ODSReuseProfileCfg",
    "ODSRuntimeCfg",
    "ODSThroughputMeasurement",
    "configure_ods",
    "measure_ods_throughput",
]
