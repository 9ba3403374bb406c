"""How fast the cache serves: against the machine's own copying speed, EmbodiChain and torchrl, in one run.

    python benchmarks/bench_sampling.py            everything; makes the peers' environments on first use
    python benchmarks/bench_sampling.py --quick    a small size without peers, under a minute

Every figure is taken in rounds: limit, ours, peer, and then again, in the opposite order, so that whatever else the
machine does hits all alike. A ratio is the median over the rounds of the ratio within one round. Torch uses one
thread. Each engine serves until its memory has been touched once before the clock starts. The process that samples
holds a batch until the next one has arrived, as a training loop does.
"""

from __future__ import annotations

import argparse


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small size; no peers, unless --peers says so")
    parser.add_argument(
        "--peers",
        choices=("make", "existing", "none"),
        help="make missing environments of peers (default), use only existing ones, or none (default of --quick)",
    )
    arguments = parser.parse_args()
    # Not at the top: producer processes import this file, and have no use for torch.
    from sampling import FULL, QUICK, run

    run(QUICK if arguments.quick else FULL, arguments.peers or ("none" if arguments.quick else "make"))


if __name__ == "__main__":
    main()
