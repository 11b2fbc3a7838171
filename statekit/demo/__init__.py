"""`statekit demo`: a real job on real data, stopped, killed and checked.

What lives here: the demo. Nothing else imports it but the command line.
"""

from statekit.demo.show import run

__all__ = ["run"]
