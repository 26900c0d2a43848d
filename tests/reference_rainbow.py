"""Rainbow for one run, as it trains on a CPU. Read it from top to bottom: `RainbowLearner.step` is
one agent step in the order of CURL's code, and calls the rest in the order it stands here.

  1. noise      all random numbers of this step, for acting and for learning
  2. act        the best action under that noise, or a random one
  3. store      the frame it saw and the action go to replay
  4. sample     a batch of n-step transitions, by their priorities
  5. loss       `loss.py`
  6. descend    clip the gradient, take a step of Adam, let the momentum network follow
  7. priorities go back to replay
  8. play       the game answers, and replay learns what came of the action
  9. target     is a copy of the online network from time to time

What a step brings is drawn n steps later at the earliest, so an update may come before the game has
answered. Replay and random numbers are written for several runs: their first axis is that of runs,
and here it is one long.

A stack (`games.py`, `stack.py`) does the same for many runs at once, and tests hold the two
together to the last bit. On a GPU one run is a stack of one: compiled parts and CUDA graphs make
that one fast.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from cclf.algorithms.rainbow import equations
from cclf.algorithms.rainbow.noise import NoiseSampler, UniformNumbers
from cclf.algorithms.rainbow.parameter_rows import NETWORKS, FlatParameters, lay_out
from cclf.algorithms.rainbow.players import EpisodicGame, GameStep
from cclf.algorithms.rainbow.rainbow import LossOutput, RainbowLoss, RainbowNet, RainbowNoise
from cclf.algorithms.rainbow.replay import NStepReplay
from cclf.algorithms.rainbow.schedule import TrainingSchedule
from cclf.storage.safe_loading import check_data
from cclf.types import GameBatch, Metrics, StepResult

COUNTERS = ("agent_steps", "updates", "reported_updates", "age")


class RainbowLearner:
    """One run: a game, Rainbow, and the replay between them. It is what the loop drives."""

    def __init__(
        self,
        env: EpisodicGame,
        algorithm: "RainbowRun",
        replay: NStepReplay,
        report_every_agent_steps: int,
    ):
        """`replay` is that of a single run.

        Metrics are handed out every so many steps, as means over the updates since.
        """
        self.env, self.algorithm, self.replay = env, algorithm, replay
        self.schedule = TrainingSchedule.of(algorithm.settings)
        self.report_every_agent_steps = report_every_agent_steps
        self.summed_names = (*algorithm.metric_names, "gradient_norm")
        self.metric_names = (*self.summed_names, "priority_entropy_share")
        self.agent_steps = 0
        self.updates = 0
        self.reported_updates = 0  # since the last report of metrics
        self.age = 0  # agent steps since the episode began
        self._sums = torch.zeros(len(self.summed_names), dtype=torch.float64)
        self._reported: list[str] = []  # which of them this method has

    def step(self, env_steps: int) -> StepResult:
        """One agent step; `env_steps` is the clock before it."""
        step = self.agent_steps + 1
        seen = torch.tensor(self.env.look())  # (F, H, W)
        action = self.act(seen, step)
        self.replay.add(seen[-1:], torch.tensor([action]), torch.tensor([self.age]))
        if not self.replay.n_step_bug:
            self.learn(step, env_steps)
        outcome = self.play(action)
        if self.replay.n_step_bug:  # the bug looks at how the newest step ended
            self.learn(step, env_steps)
        if self.schedule.updates_target_at(step):
            self.algorithm.copy_target()
        reports = step % self.report_every_agent_steps == 0 and self.schedule.updates_at(step)
        finished = [] if outcome.finished_return is None else [outcome.finished_return]
        return StepResult(1, self._report() if reports else None, finished)

    def act(self, seen: Tensor, step: int) -> int:
        """Choose an action for what the game shows."""
        uniform, noise = self.algorithm.draw(step * self.schedule.updates_per_step)
        return self.algorithm.act(seen, uniform, noise, self.schedule.epsilon_at(step))

    def learn(self, step: int, env_steps: int) -> None:
        for number in range(self.schedule.updates_at(step)):
            # The first update has the numbers with which the agent has just acted.
            uniform, noise = self.algorithm.draw(step * self.schedule.updates_per_step + number)
            batch = self.replay.sample(uniform["replay"])
            metrics, priority = self.algorithm.update(
                batch,
                noise,
                env_steps=torch.tensor(env_steps, dtype=torch.float64),
                beta=torch.tensor(self.schedule.beta_at(step), dtype=torch.float64),
            )
            self.replay.set_priorities(batch.slot, priority)
            self._sum_up(metrics)

    def play(self, action: int) -> GameStep:
        """Take the action, and tell replay what came of it."""
        outcome = self.env.play(action)
        reward = torch.tensor([outcome.reward], dtype=torch.float64)
        self.replay.add_outcome(reward, torch.tensor([outcome.ended]))
        self.agent_steps += 1
        self.age = 0 if outcome.ended else self.age + 1
        return outcome

    def _sum_up(self, metrics: Metrics) -> None:
        none = torch.zeros_like(metrics["q_loss"])
        self._sums += torch.cat([metrics.get(name, none) for name in self.summed_names])
        self._reported = list(metrics)
        self.updates += 1
        self.reported_updates += 1

    def _report(self) -> Metrics:
        """Means since the last report."""
        values = (self._sums / self.reported_updates).unbind()
        means = dict(zip(self.summed_names, values, strict=True))
        self._sums.zero_()
        self.reported_updates = 0
        return {name: means[name] for name in self._reported}

    def replay_metrics(self) -> dict[str, float]:
        """Statistics over the whole replay, for the log only."""
        return {"priority_entropy_share": self.replay.priority_entropy_share(0)}

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """The same names and shapes as those of a run in a stack."""
        return {
            "env": self.env.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "replay": self.replay.run_state(0),
            "metric_sums": self._sums,
            **{name: getattr(self, name) for name in COUNTERS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self, name, state[name])
        refuse_unknown_actions(state, self.algorithm.num_actions)
        self.age = self.age if self.env.load_state_dict(state["env"]) else 0
        self.algorithm.load_state_dict(state["algorithm"])
        self.replay.load_run_state(0, state["replay"])
        self._sums.copy_(state["metric_sums"])


class RainbowRun:
    """The networks of one run and what moves them; in evaluation it acts without noise."""

    def __init__(
        self,
        rainbow: RainbowLoss,
        key: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        """`key` seeds its random numbers. The parameters of `rainbow` become views of rows."""
        self.rainbow = rainbow.to(device, dtype)
        self.settings, self.method = rainbow.settings, rainbow.method
        self.metric_names, self.num_actions = rainbow.metric_names, rainbow.online.head.num_actions
        self.valid = torch.ones(self.num_actions, dtype=dtype, device=device)  # all are its own
        self.draws = NoiseSampler(rainbow, [key], device, dtype)
        layouts = {group: FlatParameters(rainbow, group) for group in NETWORKS}
        self.layout = layouts["online"]
        rows = [lay_out(rainbow, layout) for layout in layouts.values()]
        self.online, self.target, self.momentum = rows  # (P,) each
        self.of_target = layouts["target"].source(self.layout)
        self.of_momentum = layouts["momentum"].source(self.layout)
        for name, parameter in rainbow.named_parameters():
            parameter.requires_grad_(name in self.layout.shapes)
        self.moments = {name: torch.zeros_like(self.online) for name in ("mean", "square")}
        self.adam_steps = torch.zeros((), dtype=torch.float64, device=device)

    def draw(self, moment: int) -> tuple[UniformNumbers, RainbowNoise]:
        """All random numbers of a moment: uniform ones by name, and what the networks need."""
        return self.draws.at(torch.tensor(moment, device=self.valid.device))

    @torch.no_grad()
    def act(
        self, seen: Tensor, uniform: UniformNumbers, noise: RainbowNoise, epsilon: float
    ) -> int:
        """The best action for frames (F, H, W) under the noise; with probability `epsilon` any."""
        ((chance, which),) = uniform["explore"].tolist()
        if chance < epsilon:
            return int(which * self.num_actions)
        values = as_in_a_stack(self.network, seen[None, None], noise.online, valid=self.valid)
        return int(values.argmax())

    def update(
        self, batch: GameBatch, noise: RainbowNoise, env_steps: Tensor, beta: Tensor
    ) -> tuple[Metrics, Tensor]:
        """Learn from a batch: metrics (1,) each, and new priorities (1, B) of its transitions."""
        clocks = {"env_steps": env_steps, "beta": beta}
        step: LossOutput = as_in_a_stack(self.rainbow, batch, noise, valid=self.valid, **clocks)
        learned = {name: self.rainbow.get_parameter(name) for name in self.layout.shapes}
        found = torch.autograd.grad(step.loss.sum(), [*learned.values()], materialize_grads=True)
        norm = self.descend(self.layout.row(dict(zip(learned, found, strict=True))))
        return step.metrics | {"gradient_norm": norm[None]}, step.priority.detach()

    @torch.no_grad()
    def descend(self, gradient: Tensor) -> Tensor:
        """Clip the gradient, take a step of Adam, let the momentum network follow.

        Returned is the norm before clipping. It is taken over the whole row, padding and all: the
        order in which PyTorch adds numbers up depends on how many there are.
        """
        norm: Tensor = gradient.norm()
        gradient = gradient * (self.settings.max_gradient_norm / (norm + 1e-6)).clamp_max(1.0)
        self.adam_steps += 1.0
        equations.adam_step(
            self.online,
            gradient,
            **self.moments,
            steps=self.adam_steps,
            learning_rate=self.settings.learning_rate,
            epsilon=self.settings.adam_epsilon,
        )
        if self.method.contrastive:
            self.momentum.lerp_(self.online[self.of_momentum], self.settings.key_ema_rate)
        return norm

    def copy_target(self) -> None:
        self.target.copy_(self.online[self.of_target])

    # For evaluation.

    @property
    def network(self) -> RainbowNet:
        """The one that acts."""
        return self.rainbow.online

    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The best actions (n,) without noise."""
        return self.evaluation_values(observation).argmax(1)

    @torch.no_grad()
    def evaluation_values(self, observation: Tensor) -> Tensor:
        """Q values (n, A) without noise, for stacks (n, F, H, W)."""
        values: Tensor = self.network(observation, (), self.valid)
        return values

    # To be saved and loaded, alone or as a run of a stack.

    def parameters(self, group: str = "online") -> dict[str, Tensor]:
        """By name, those that learn or those of a copy."""
        named = self.networks.state_dict().items()
        return {name: value for name, value in named if name.startswith(NETWORKS[group])}

    @property
    def networks(self) -> "RunNetworks":
        return RunNetworks(self.rainbow)

    def maxima(self) -> dict[str, Tensor]:
        framework = self.rainbow.framework
        return {
            "framework.reward_max": framework.reward_max,
            "framework.bonus_max": framework.bonus_max,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": self.networks.state_dict(),
            "maxima": self.maxima(),
            "moments": {name: self.layout.named(row) for name, row in self.moments.items()},
            "adam_steps": int(self.adam_steps),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.networks.load_state_dict(state["networks"])
        for name, value in self.maxima().items():
            value.copy_(state["maxima"][name])
        for name, row in self.moments.items():
            row.copy_(self.layout.row(state["moments"][name]))
        self.adam_steps.fill_(state["adam_steps"])


class RunNetworks(NamedTuple):
    """The weights of one run, of all its networks."""

    rainbow: RainbowLoss

    def state_dict(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.rainbow.named_parameters()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, parameter in self.rainbow.named_parameters():
            parameter.copy_(state[name])


def as_in_a_stack(module: nn.Module, *inputs: Any, **shared: Any) -> Any:
    """`module(*inputs, **shared)`, with the last bits that a stack of one run gives it.

    `inputs` and result have the axis of runs in front. `vmap` makes products of matrices batched
    ones. Where such a product has few columns, its terms are added in another order than those of
    a plain product. Without `vmap` a run would change by 2e-7 when it goes on in a stack.
    """
    tensors = (*module.named_parameters(), *module.named_buffers())
    own = {name: value[None] for name, value in tensors}

    def call(own: dict[str, Tensor], inputs: tuple[Any, ...]) -> Any:
        return functional_call(module, own, inputs, shared)

    return vmap(call)(own, inputs)


def refuse_unknown_actions(state: dict[str, Any], num_actions: int) -> None:
    """Of a learner's state, whose replay may come from another game or a damaged file."""
    actions = state["replay"]["actions"]
    known = ((actions >= 0) & (actions < num_actions)).all()
    check_data(known, f"replay holds actions that are none of {num_actions}")
