"""`statekit demo`: a real job on real data, stopped, killed and checked.

May import `statekit` itself, as users do, and `query/rows`.
"""

from statekit.demo.play import play
from statekit.demo.show import run_demo

__all__ = ["play", "run_demo"]
