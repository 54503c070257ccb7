"""Makes the benchmarks importable: they are scripts of the repository, not part of the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
