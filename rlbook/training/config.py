"""Settings of a single-process training run, typed and validated."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TrainConfig(BaseModel):
    """Everything that decides a run: the same config and seed give the same run on one thread."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = Field("grpo", description="row of rlbook.objectives.METHODS")
    policy: str = Field("tiny", description='"tiny", a model folder, or a hub name')
    task: str = Field("sums", description='"sums", "reasoning_gym:<name>", "dataset:<path or hub>"')
    levels: tuple[int, ...] | None = Field(None, description="difficulty levels; all if absent")

    steps: int = Field(60, ge=1, description="rollout batches")
    prompts: int = Field(16, ge=1, description="prompts per step")
    group_size: int = Field(8, ge=1, description="completions per prompt")
    max_new_tokens: int = Field(80, ge=1, description="completion limit in tokens")
    temperature: float = Field(1.0, gt=0, description="of sampling and of every log-probability")

    minibatches: int = Field(4, ge=1, description="optimizer updates per pass over the rollouts")
    epochs: int = Field(1, ge=1, description="passes over each rollout batch")
    lr: float = Field(1.5e-4, gt=0, description="AdamW learning rate of the policy")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW moments")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0, description="gradient clipping threshold")
    micro_batch_tokens: int = Field(8192, ge=1, description="padded tokens per forward pass")

    pool: int | None = Field(
        None, ge=1, description="distinct problems, met again every epoch; endless if absent"
    )
    retire_at: float | None = Field(
        None, gt=0, le=1, description="pass rate at which a problem leaves the pool (ScaleRL: 0.9)"
    )

    reward_right: float | None = Field(None, description="of a correct completion; the method's")
    reward_wrong: float | None = Field(None, description="of any other completion; the method's")
    reward_format: float = Field(0.0, description="added when the format is right")
    overlong_cache: int | None = Field(
        None, ge=1, description="tokens of the soft overlong ramp; a fifth of the limit if absent"
    )

    anchor: Literal["sampler", "recomputed"] = Field(
        "sampler", description="π_old: the sampler's own log-probs, or recomputed by the trainer"
    )
    sampler_refresh: int = Field(1, ge=1, description="steps between weight pushes to the sampler")
    gamma: float = Field(1.0, ge=0, le=1, description="discount of GAE")
    lam: float = Field(1.0, ge=0, le=1, description="λ of GAE")
    critic_lr: float = Field(3e-4, gt=0, description="AdamW learning rate of the critic")
    value_clip: float | None = Field(0.2, gt=0, description="range of the clipped value loss")

    seed: int = Field(0, ge=0)
    device: str = Field("cpu", description='"cpu", "cuda", "cuda:0", …')

    @model_validator(mode="after")
    def _consistent(self) -> "TrainConfig":
        right, wrong = self.reward_right, self.reward_wrong
        if right is not None and wrong is not None and right <= wrong:
            raise ValueError(f"reward_right ({right}) must exceed reward_wrong ({wrong})")
        if self.minibatches > self.prompts:
            raise ValueError(
                f"minibatches ({self.minibatches}) cannot exceed prompts ({self.prompts}): "
                "a minibatch holds whole groups"
            )
        if self.retire_at is not None and self.pool is None:
            raise ValueError("retire_at needs a finite pool: set pool to a number of problems")
        return self
