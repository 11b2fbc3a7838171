"""All tests. Their manifests have room for one entry, and pages for three.

So most checkpoints of tests have pages. Processes that tests start import this package too, and so
do benchmarks, which have the limits of users. Other systems run in environments without statekit.
"""

import os

if "PYTEST_VERSION" in os.environ:
    from statekit.checkpoint.manifest_pages import ManifestPages, PageLimits

    ManifestPages.limits = PageLimits(own=1, entries=3, spread=2)
