"""`statekit demo`: a real job on real data, stopped, killed and checked."""

from statekit.demo.show import run

__all__ = ["run"]
