"""Asynchronous inference, synchronous training: engines generate, a learner distils, metrics say who holds back whom.

::

    engine processes                             learner process
    target: GRU language model                   fleet: what has arrived, oldest first
      --> generate N sequences     shared          --> collate, pad, pin
      --> wait for a free slot --> memory -->      --> host to device
      --> copy, announce           + pipe          --> draft: loss, AdamW

    python -m examples.async_inference debug.enable_perf_metrics=true
"""
