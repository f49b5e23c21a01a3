"""The commands of `prep`, one file each: options in, one call, printed results. A process that runs
one, or is a worker of one, looks for cycles of objects less often from here on.
"""

from pipeline.core import collect_rarely

collect_rarely()
