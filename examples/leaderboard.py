"""A leaderboard with a server: the three best players of each game, readable over HTTP.

    python examples/leaderboard.py                                    in this process
    statekit run examples.leaderboard:job --checkpoint results/leaderboard/checkpoint
    statekit serve board=results/leaderboard/checkpoint               the server alone
    pytest examples/leaderboard.py                                    check the function

The server reads the checkpoint, so it answers beside the job, and also when the job is not running:
`GET /board/ranked/best/chess`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

import statekit as sk

DATA = Path(__file__).parent / "data"
RESULTS = Path("results/leaderboard")


class Score(NamedTuple):
    game: str
    player: str
    points: Annotated[int, Field(ge=0)]


class Standing(NamedTuple):
    player: str
    points: int


class Leaders(NamedTuple):
    game: str
    best: list[Standing]


@sk.process(key="game")
def ranked(
    score: Score, totals: sk.MapState[str, int], best: sk.ValueState[list[Standing]]
) -> Iterator[Leaders]:
    # Points are never taken away, so only the player who has scored can enter the best three.
    total = totals[score.player] = totals.get(score.player, 0) + score.points
    before = best.get() or []
    others = [standing for standing in before if standing.player != score.player]
    after = sorted(
        [*others, Standing(score.player, total)], key=lambda of: (-of.points, of.player)
    )[:3]
    if after != before:
        best.update(after)
        yield Leaders(score.game, after)


job = sk.Job("leaderboard")
scores = job.source("scores", Score, sk.sources.files(DATA / "scores.jsonl"))
scores.process(ranked).sink("leaders", sk.sinks.json_lines(RESULTS / "leaders"))


def test_the_leaders_depend_on_no_crash_and_no_parallelism() -> None:
    from statekit.testing import check

    check(ranked, depth="quick")


if __name__ == "__main__":
    job.run(checkpoint=RESULTS / "checkpoint")
    with sk.Replica(RESULTS / "checkpoint") as replica, replica.at() as view:
        for game, best in view.state("ranked", "best").items():
            print(game, *(f"{of['player']} {of['points']}" for of in best), sep="  ")
