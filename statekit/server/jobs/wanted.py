"""Wanted epochs: the epoch that a request asks for, as the parameters of its address."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from statekit.checkpoint.epoch_id import EpochId
from statekit.query.replica.view import View
from statekit.server.answers.problems import bad_request

WAIT_MAX_S = 60.0
"""Longest wait for an epoch, in seconds."""

EpochNumber = Annotated[int | None, Field(ge=0, le=2**62)]
Checksum = Annotated[str | None, Field(pattern="^[0-9a-f]{32}$")]
"""Checksum of a manifest."""

Seconds = Annotated[float, Field(ge=0, le=WAIT_MAX_S, allow_inf_nan=False)]


class Wanted(BaseModel, extra="forbid"):
    """The epoch that a request asks for; by default the last one."""

    epoch: EpochNumber = Field(default=None, description="The answer is of this epoch.")
    manifest: Checksum = Field(
        default=None,
        description="With epoch: the checksum of its manifest. If the checkpoint was replaced "
        "since, such as by a backup, the answer is 410, and not another epoch of the same number.",
    )
    as_of: AwareDatetime | None = Field(
        default=None, description="The answer is of the last epoch that was not processed later."
    )
    min_epoch: EpochNumber = Field(
        default=None, description="The answer is of this epoch or of a later one."
    )
    min_watermark: AwareDatetime | None = Field(
        default=None, description="The answer is of an epoch whose watermark reached this time."
    )
    wait: Seconds = Field(
        default=0.0, description="Seconds to wait for min_epoch and min_watermark."
    )

    @classmethod
    def exactly(cls, epoch_id: EpochId) -> Self:
        """Return the choice of the epoch with an identity."""
        return cls(epoch=epoch_id.epoch, manifest=epoch_id.manifest)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Check that the parameters fit each other.

        Raises:
            Problem: they do not.
        """
        if self._choices.count(None) < len(self._choices) - 1:
            raise bad_request("give one of epoch, as_of, min_epoch and min_watermark")
        if self.manifest is not None and self.epoch is None:
            raise bad_request("manifest= is the checksum of an epoch's manifest: give epoch=, too")
        return self

    @property
    def _choices(self) -> tuple[object, ...]:
        return self.epoch, self.as_of, self.min_epoch, self.min_watermark

    @property
    def is_last(self) -> bool:
        """True for the last epoch."""
        return not self.model_fields_set or not any(own is not None for own in self._choices)

    @property
    def epoch_id(self) -> EpochId | None:
        """The identity of the epoch; None if the request does not have it."""
        if self.epoch is None or self.manifest is None:
            return None
        return EpochId(self.epoch, self.manifest)

    def is_of(self, view: View) -> bool:
        """Return whether a view is of the epoch with this number, or identity; True without one."""
        if self.epoch_id is not None:
            return view.id == self.epoch_id
        return self.epoch is None or view.epoch == self.epoch

    def is_reached(self, view: View, operator: str | None) -> bool:
        """Return whether a view has `min_epoch`, and `min_watermark` of an operator; of all
        operators for None.
        """
        if self.min_epoch is not None and view.epoch < self.min_epoch:
            return False
        if self.min_watermark is None:
            return True
        names = view.operators if operator is None else (operator,)
        reached = [view.watermark(name) for name in names]
        timed = [mark for mark in reached if mark is not None]
        return bool(timed) and min(timed) >= self.min_watermark


LAST = Wanted()
