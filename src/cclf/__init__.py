"""Contrastive-curiosity-driven reinforcement learning from pixels (Sun, Qian, Miao, IJCAI 2022)."""

__version__ = "0.2.0"
