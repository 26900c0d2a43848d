"""Rainbow for one run in its plainest form: no batch of runs, no rows of parameters, torch's Adam.

The tests hold `cclf.algorithms.rainbow` against it. The loss, the replay and the random numbers are
those of the package, which have tests of their own.
"""

import torch

from cclf.algorithms.rainbow.game_workers import EpisodicGame
from cclf.algorithms.rainbow.learner import make_replay
from cclf.algorithms.rainbow.noise import NoiseSampler, noise_key
from cclf.algorithms.rainbow.rainbow import make_rainbow
from cclf.types import GameBatch

CPU = torch.device("cpu")


class ReferenceRainbow:
    def __init__(self, config, game, dtype=torch.float64):
        self.game, spec = EpisodicGame(game, config.env.frame_stack), game.spec
        self.dtype, self.settings = dtype, config.algorithm
        self.module = make_rainbow(config, spec.num_actions).to(dtype)
        self.trained = [
            parameter
            for name, parameter in self.module.named_parameters()
            if name.startswith(("framework.", "online."))
        ]
        self.optimizer = torch.optim.Adam(
            self.trained, self.settings.learning_rate, eps=self.settings.adam_epsilon
        )
        self.noise = NoiseSampler(self.module, [noise_key(config)], CPU, dtype)
        self.replay = make_replay(config, 1, CPU)
        self.action_mask = torch.ones(spec.num_actions, dtype=dtype)
        self.agent_steps = self.age = 0

    def step(self, env_steps):
        """One agent step. Returns the action and the metrics of its updates."""
        step = self.agent_steps + 1
        observation = torch.tensor(self.game.observation())  # (F, H, W)
        action = self.act(observation, step)
        self.replay.add(observation[-1:], torch.tensor([action]), torch.tensor([self.age]))
        metrics = [] if self.settings.n_step_bug else self.learn(step, env_steps)
        result = self.game.step(action)
        reward = torch.tensor([result.reward], dtype=torch.float64)
        self.replay.add_reward(reward, torch.tensor([result.ended]))
        self.agent_steps, self.age = step, 0 if result.ended else self.age + 1
        if self.settings.n_step_bug:
            metrics = self.learn(step, env_steps)
        if self.settings.updates_target_at(step):
            self.module.target_encoder.load_state_dict(self.module.online.encoder.state_dict())
            self.module.target_head.load_state_dict(self.module.online.head.state_dict())
        return action, metrics

    @torch.no_grad()
    def act(self, observation, step):
        uniform, noise = self.noise.sample_single(self.settings.update_index(step))
        chance, choice = uniform["explore"].tolist()
        if chance < self.settings.epsilon_at(step):
            return int(choice * len(self.action_mask))
        values = self.module.online(observation[None], noise.online, self.action_mask)
        return int(values.argmax())

    def learn(self, step, env_steps):
        metrics = []
        for update in range(self.settings.updates_in_step(step)):
            uniform, noise = self.noise.sample_single(self.settings.update_index(step, update))
            batch = GameBatch(*(part[0] for part in self.replay.sample(uniform["replay"][None])))
            clocks = (env_steps, self.settings.beta_at(step))
            clocks = (torch.tensor(value, dtype=torch.float64) for value in clocks)
            output = self.module(batch, noise, *clocks, self.action_mask)
            self.optimizer.zero_grad()
            output.loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.trained, self.settings.max_gradient_norm)
            self.optimizer.step()
            self.update_momentum()
            self.replay.set_priorities(batch.slot[None], output.priority.detach()[None])
            metrics.append(output.metrics | {"gradient_norm": norm})
        return metrics

    @torch.no_grad()
    def update_momentum(self):
        if not self.module.method.contrastive:
            return
        pairs = (
            (self.module.momentum_encoder, self.module.online.encoder),
            (self.module.momentum_projection, self.module.online.projection),
        )
        for momentum, online in pairs:
            for slow, fast in zip(momentum.parameters(), online.parameters(), strict=True):
                slow.lerp_(fast, self.settings.key_ema_rate)
