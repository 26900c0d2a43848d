"""The equations of Rainbow (Hessel et al., 2018): N atoms z_i, A actions."""

import torch
from torch import Tensor


def noise_factor(normal: Tensor) -> Tensor:
    """f(x) = sign(x) sqrt|x|, of the factorised noise of noisy layers (Fortunato et al., 2018).

    >>> noise_factor(torch.tensor([-4.0, 0.0, 9.0]))
    tensor([-2.,  0.,  3.])
    """
    return normal.sign() * normal.abs().sqrt()


def dueling(value: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Q = V + A - mean_a A, atom by atom: value (B, N), advantage (B, A, N), the mean over the
    actions of `mask` (A,) alone.

    >>> dueling(torch.tensor([[10.0]]), torch.tensor([[[1.0], [3.0], [99.0]]]), torch.tensor([1.0, 1.0, 0.0]))[0, :2, 0]
    tensor([ 9., 11.])
    """
    mean = (advantage * mask[:, None]).sum(1, keepdim=True) / mask.sum()
    return value[:, None] + advantage - mean


def best_action(q: Tensor, mask: Tensor) -> Tensor:
    """argmax_a Q(s, a) over the actions of `mask` (A,) of Q values (B, A).

    >>> best_action(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([1.0, 1.0, 0.0]))
    tensor([1])
    """
    return q.masked_fill(mask == 0.0, -torch.inf).argmax(1)


def project_categorical(probabilities: Tensor, atoms: Tensor, support: Tensor) -> Tensor:
    """The projection of C51 (Bellemare et al., 2017): the probability of each of the `atoms` (B, N)
    is distributed to its neighbors in the evenly spaced `support` (N,), in proportion to proximity.
    Atoms outside the support are clamped to it.

        m_j = sum_i p_i max(0, 1 - |clamp(Tz_i) - z_j| / dz)

    This form needs no floor and ceiling, which lose probability where an atom coincides with one of
    the support.

    >>> support = torch.tensor([-1.0, 0.0, 1.0])
    >>> project_categorical(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[-0.25, 0.0, 7.0]]), support)
    tensor([[0.1250, 0.6250, 0.2500]])
    """
    spacing = (support[-1] - support[0]) / (support.shape[0] - 1)
    positions = (atoms.clamp(support[0], support[-1]) - support[0]) / spacing
    indices = torch.arange(support.shape[0], device=support.device)
    proximity = (1.0 - (positions[:, :, None] - indices).abs()).clamp_min(0.0)
    return (probabilities[:, :, None] * proximity).sum(1)


def importance_weights(priority: Tensor, beta: Tensor) -> Tensor:
    """(N P_b)^-beta, divided by the largest of the batch (Schaul et al., 2016). N and the sum in P
    cancel: (p_b / min p)^-beta.

    >>> importance_weights(torch.tensor([4.0, 1.0]), torch.tensor(0.5))
    tensor([0.5000, 1.0000])
    """
    return (priority / priority.min()) ** -beta


def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    steps: Tensor,
    *,
    learning_rate: float,
    epsilon: float,
) -> None:
    """The `steps`-th step of Adam (Kingma and Ba, 2015), in place: m and v are running means of the
    gradient and its square.

    p - lr m' / (sqrt(v') + eps),  m' = m / (1 - 0.9^t),  v' = v / (1 - 0.999^t)

    >>> weight, m, v = torch.tensor([1.0]), torch.zeros(1), torch.zeros(1)
    >>> adam_step(weight, torch.tensor([-3.0]), m, v, torch.tensor(1.0), learning_rate=0.1, epsilon=1e-8)
    >>> weight
    tensor([1.1000])
    """
    mean.lerp_(gradient, 0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    rate = (learning_rate / (1.0 - 0.9**steps)).to(parameter.dtype)
    root = (square / (1.0 - 0.999**steps).to(parameter.dtype)).sqrt_().add_(epsilon)
    parameter.sub_(root.reciprocal_().mul_(mean).mul_(rate))
