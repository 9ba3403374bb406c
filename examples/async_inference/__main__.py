"""``python -m examples.async_inference``."""

from examples.async_inference.train import main

if __name__ == "__main__":
    main()
