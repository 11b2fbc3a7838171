"""`statekit demo`: a real job on real data, stopped, killed and checked.

May import only `statekit` itself, as users do.
"""

from statekit.demo.show import run

__all__ = ["run"]
