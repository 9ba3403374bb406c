"""Behaviour cloning of Franka pick-and-place, from a live stream and from fixed data, with the same learner.

::

    train --> settings      what to run, and what is refused before anything starts
          --> arms          live | frozen | offline: where contexts come from
          --> learner       what is trained: replace it here
          --> loop          sample, update, evaluate, checkpoint: the same for every arm
          --> records       what was produced, delivered, trained on, waited for, and used up
    evaluate                in a fresh process: a checkpoint, held-out scenes, success with intervals, videos
    compare                 all arms over several seeds: tables and plots
"""
