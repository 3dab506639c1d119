"""``python benchmarks/peers``: see :mod:`peers.run`."""

import sys
from pathlib import Path

# Run as a folder, only the folder itself is on the path: the package and its neighbours are one above.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from peers.run import main  # noqa: E402 -- the path comes first

sys.exit(main())
