"""zstd as Python 3.14 has it, for every version."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import *  # noqa: F403
else:
    from backports.zstd import *  # noqa: F403
