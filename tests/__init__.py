"""All tests. With STATEKIT_SMALL_PAGES=1, manifests keep all entries in pages of three shards each.

The processes that tests start import this package too, so they write such pages as well.
"""

import os

SMALL_PAGES = bool(os.environ.get("STATEKIT_SMALL_PAGES"))

if SMALL_PAGES:
    from statekit.checkpoint.manifest_pages import ManifestPages
    from statekit.checkpoint.shard_pages import PageLimits

    ManifestPages.limits = PageLimits(unpaged=0, entries=3, spread=2)
