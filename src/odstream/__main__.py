"""``python -m odstream``. A producer process imports this module again, so it must stay light."""

from odstream.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
