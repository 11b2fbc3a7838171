"""Options of states: what mypy can see of them."""

import statekit as sk


def longer(current: str, added: str) -> str:
    return max(current, added, key=len)


def add(held: tuple[int, int], added: int) -> tuple[int, int]:
    return held[0] + added, held[1] + 1


sk.Reduce(max)
sk.Reduce(sum)
sk.Reduce("count")
sk.Reduce(longer)
sk.Reduce(lambda current, added: current + added)
sk.Aggregate(create=lambda: (0, 0), add=add, result=lambda held: held[0] / held[1])
sk.Default(5)

sk.Reduce()  # error: Missing positional argument "fn"
sk.Reduce(5)  # error: incompatible type
sk.Reduce("average")  # error: incompatible type
sk.Reduce(len)  # error: incompatible type
sk.Reduce(lambda current: current)  # error: incompatible type
sk.Aggregate(create=lambda: (0, 0), add=add)  # error: Missing positional argument "result"
sk.Aggregate(create=lambda: "text", add=add, result=len)  # error: Cannot infer value
sk.Aggregate(create=tuple[int, int], add=add, result=lambda held: held.nothing)  # error: nothing
sk.Default()  # error: Missing positional argument "value"
