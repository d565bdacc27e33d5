"""Chapter 11: who stops whom, probabilities out of reach, DPPO's mask, a list, and a new row."""

from collections.abc import Callable, Sequence, Set

import torch
from torch import Tensor, nn

from rlbook.objectives import (
    DivergenceMask,
    Region,
    Tokens,
    TrustRegion,
    binary_divergence,
    topk_divergence,
    weigh,
)
from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right

BY_CLIP, BY_TV = {"a", "b", "c"}, {"c", "d"}

MOVES = torch.tensor(
    [[0.01, 0.02], [0.96, 0.8], [0.6, 0.8], [0.9, 0.7], [0.5, 0.5], [0.2, 0.1], [0.3, 0.6],
     [0.7, 0.4], [0.05, 0.1], [0.5, 0.5775]], dtype=torch.float64,
)  # fmt: skip


def keeps(logp: Tensor, log_mu: Tensor, advantages: Tensor, delta: float = 0.15) -> Tensor:
    """DPPO's mask with the binary total variation: True where a token may learn."""
    change = logp.exp() - log_mu.exp()
    return ~(((advantages > 0) & (change > delta)) | ((advantages < 0) & (change < -delta)))


def check_keeps(mine: Callable[..., Tensor]) -> bool:
    """Section 3: DPPO's mask, as the reader writes it."""

    def by(
        too_high: Callable[[Tensor, Tensor], Tensor], too_low: Callable[[Tensor, Tensor], Tensor]
    ) -> Callable[..., Tensor]:
        def mask(logp: Tensor, log_mu: Tensor, a: Tensor, delta: float = 0.15) -> Tensor:
            change, limit = logp.exp() - log_mu.exp(), torch.tensor(delta)
            return ~(((a > 0) & too_high(change, limit)) | ((a < 0) & too_low(change, limit)))

        return mask

    def ratio(logp: Tensor, log_mu: Tensor, a: Tensor, delta: float = 0.15) -> Tensor:
        rho = (logp - log_mu).exp()
        return ~(((a > 0) & (rho > 1 + delta)) | ((a < 0) & (rho < 1 - delta)))

    def logarithms(logp: Tensor, log_mu: Tensor, a: Tensor, delta: float = 0.15) -> Tensor:
        gap = logp - log_mu
        return ~(((a > 0) & (gap > delta)) | ((a < 0) & (gap < -delta)))

    up = torch.gt
    probe = (MOVES[:, 1].log(), MOVES[:, 0].log())
    return check_lines(
        mine,
        keeps,
        {
            "the minus is lost: a bad token that has not moved at all is exempt from learning": by(
                up, lambda change, delta: change < delta
            ),
            "a token on its way back is stopped as well: ask the sign of the advantage": (
                lambda logp, log_mu, a, d=0.15: (logp.exp() - log_mu.exp()).abs() <= d
            ),
            "that is the ratio, PPO's ruler: from 0.01 to 0.02 is a change of 0.01, not of 1": (
                ratio
            ),
            "a difference of logarithms is a ratio: take exp of each first": logarithms,
            "the signs are exchanged: stopped is what moves the way its advantage pushes": (
                lambda logp, log_mu, a, d=0.15: keeps(logp, log_mu, -a, d)
            ),
            "upside down: True means that a token may learn": (
                lambda logp, log_mu, a, d=0.15: ~keeps(logp, log_mu, a, d)
            ),
            "good tokens only: a bad one that has fallen too far has to be stopped, too": by(
                up, lambda change, delta: torch.zeros_like(change, dtype=torch.bool)
            ),
        },
        [(*probe, sign * torch.ones(len(MOVES))) for sign in (1.0, -1.0)],
        "a token is stopped by how much probability it has moved, and only on its way out",
        "exp of both, their difference; then one comparison for each sign of the advantage",
    )


def same_weights(mine: nn.Module, its: nn.Module) -> float:
    """Largest difference between parameters of two models; raises `ValueError` above 1e-4."""
    pairs = zip(mine.parameters(), its.parameters(), strict=True)
    apart = max((a - b).abs().max().item() for a, b in pairs)
    if apart > 1e-4:
        raise ValueError(f"a weight differs from the package's by {apart:.1e}: the same loss?")
    return apart


def check_stopped(answer: tuple[Set[str], Set[str]] | None) -> None:
    """Exercise 1: the tokens that the clip stops, and those that total variation stops."""
    if answer is None:
        not_attempted()
        return
    clip, tv = ({str(name).strip().lower() for name in given} for given in answer)
    if (clip, tv) == (BY_CLIP, BY_TV):
        right("the rulers agree on one token alone, which is neither rare nor nearly certain")
    elif (clip, tv) == (BY_TV, BY_CLIP):
        not_yet("the clip's set comes first")
    elif "d" in clip:
        not_yet("how large can the ratio of a token become that starts at 0.8?")
    elif "a" in tv:
        not_yet("a hundred times as likely, but by how much has a risen?")
    elif "b" in tv:
        not_yet("b doubled. TV asks for the difference, not for the ratio")
    else:
        not_yet("clip: is π/μ > 1.28? TV: is π − μ > 0.15?")


def check_out_of_reach(answer: tuple[float, float] | None) -> None:
    """Exercise 2: the least μ from which neither ruler can stop a rise."""
    check_numbers(
        answer,
        (1 / 1.28, 0.85),
        "a probability ends at 1: near the top neither ruler limits a rise",
        {
            (0.72, 0.85): "1 − ε would bound a difference; the clip bounds a ratio",
            (0.85, 1 / 1.28): "the clip's comes first",
            (1 / 1.28, 1 / 1.15): "TV bounds a difference; 1/1.15 would bound a ratio",
            (1 / 1.28, 0.15): "that is where a *fall* gets out of reach; the token is to rise",
        },
        "π_θ is at most 1: when can π_θ/μ exceed 1.28, and when can π_θ − μ exceed 0.15?",
        tolerance=6e-3,
    )


def check_keep_kl(answer: Callable[[Tensor, Tensor, Tensor], Tensor | None]) -> None:
    """Exercise 3: the mask of DPPO-KL, True where a token keeps its gradient."""
    draw = torch.Generator().manual_seed(3)
    mu, pi = torch.rand(2, 8, 50, generator=draw, dtype=torch.float64).clamp(0.01, 0.99)
    new, old = pi.log(), mu.log()
    push = torch.randn(8, 50, generator=draw, dtype=torch.float64)
    keep = answer(new, old, push)
    if keep is None:
        not_attempted()
        return
    far, region = binary_divergence(new, old, "kl") > 0.05, DivergenceMask("kl", 0.05, 0.05)

    def keep_of(new: Tensor, old: Tensor, push: Tensor) -> Tensor:
        return weigh(region, Tokens.of(new, old, push)).keep

    wanted = keep_of(new, old, push)
    hints = {
        "that is True where a token is stopped; asked is where it keeps its gradient": ~wanted,
        "you also stop tokens that are on their way back": ~far,
        "you stop what comes back and let go what runs away: mind the sign": keep_of(
            new, old, -push
        ),
        "logp and log_mu are swapped": keep_of(old, new, push),
        "only one sign of Â is looked at": ~(far & (push > 0) & (new > old)),
        "only the sign of the move is looked at, not how far": ~((new - old) * push > 0),
    }
    if not isinstance(keep, Tensor) or keep.shape != new.shape:
        not_yet("give a boolean tensor of the shape of logp")
    elif torch.equal(keep.bool(), wanted):
        right("the divergence says how far, the sign of (ρ − 1)·Â says whether it runs away")
    else:
        fitting = (hint for hint, mask in hints.items() if torch.equal(keep.bool(), mask))
        not_yet(next(fitting, "combine the sign of Â, the side of the ratio, and D > δ"))


def check_pair(answer: tuple[Sequence[float], Sequence[float]] | None) -> None:
    """Exercise 4: (μ, π) over three tokens that only the top-1 list finds too far."""
    if answer is None:
        not_attempted()
        return
    mu, pi = (torch.tensor(list(side), dtype=torch.float64) for side in answer)
    if mu.shape != (3,) or pi.shape != (3,):
        not_yet("give two lists of three probabilities")
    elif min(mu.min(), pi.min()) < 0.05 or max(abs(mu.sum() - 1), abs(pi.sum() - 1)) > 1e-6:
        not_yet("both must sum to 1, with no entry below 0.05")
    elif pi[0] <= mu[0]:
        not_yet("with Â > 0 a token that has not risen is never stopped")
    elif pi[0] - mu[0] > 0.15:
        not_yet("token 0 moved by more than 0.15: binary TV stops it as well")
    else:
        listed = sorted({0, int(mu.argmax())})
        found = topk_divergence(*(x[listed].log()[None, None] for x in (pi, mu))).item()
        if found > 0.15:
            right(f"the list sees {found:.2f}, the token's own probability {pi[0] - mu[0]:.2f}")
        else:
            not_yet(f"the list sees only {found:.2f}: which tokens are on it, and do they move?")


def check_spo(region: Region | None) -> None:
    """The lab: SPO as a trust region with ε = 0.2, judged by its weights."""
    if region is None:
        not_attempted()
        return
    draw = torch.Generator().manual_seed(5)
    old = 3 * torch.rand(6, 9, generator=draw, dtype=torch.float64).log()
    noise = torch.randn(6, 9, generator=draw, dtype=torch.float64)
    logp = (old + 0.5 * noise).clamp(max=-1e-3)
    push = torch.randn(6, 9, generator=draw, dtype=torch.float64)
    tokens = Tokens.of(logp, old, push)
    result = (region.weigh if isinstance(region, TrustRegion) else region)(tokens)
    if not isinstance(result, tuple) or len(result) != 2:
        not_yet("a trust region returns Weights(weight, keep)")
        return
    rho, sign = tokens.ratio, push.sign()
    given = torch.where(result[1], result[0], 0.0)

    def is_that_of(weight: Tensor) -> bool:
        return torch.allclose(given, weight, rtol=1e-6, atol=1e-9)

    inside = ((rho - 1) * sign <= 0.2).double()
    wrong = {
        "the penalty needs |Â|, not Â: it pushes every bad token away from 1": rho
        * (1 - (rho - 1) / 0.2),
        "your penalty pushes the ratio outwards: the sign": rho * (1 + sign * (rho - 1) / 0.2),
        "that is the objective without its penalty": rho,
        "a factor 2: the derivative of (ρ − 1)² is 2(ρ − 1)": rho
        * (1 - 2 * sign * (rho - 1) / 0.2),
        "the penalty's weight is |Â|/(2ε): you have left out the ε": rho * (1 - sign * (rho - 1)),
        "that is a wall at ε; SPO has a slope through it": rho * inside,
        "the ratio multiplies the whole weight: d/d log π of ρ is ρ": 1 - sign * (rho - 1) / 0.2,
        "the penalty is on ρ − 1, not on π − μ: that is DRPO": rho
        * (1 - sign * (logp.exp() - old.exp()) / 0.2),
    }
    if not torch.allclose(result[0], rho * (1 - sign * (rho - 1) / 0.2)):
        fitting = (hint for hint, weight in wrong.items() if is_that_of(weight))
        not_yet(next(fitting, "differentiate the objective by log π, with dρ/d log π = ρ"))
    elif not bool(result[1].all()):
        not_yet("the weight is right; `keep` is about a gradient cut off, and none is")
    else:
        right("zero at the clip's own walls, and turned round outside")
