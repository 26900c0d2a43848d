from dataclasses import dataclass
from typing import ClassVar

from cclf.algorithms.base import Method, index_by_name
from cclf.algorithms.sac import SacAlgorithm
from cclf.algorithms.sac.config import SacConfig


@dataclass(frozen=True)
class BoldConfig(SacConfig):
    base: ClassVar = "bold-sac"


class BoldSac(SacAlgorithm):
    name = "bold-sac"
    settings_type = BoldConfig
    methods = index_by_name(
        SacAlgorithm.methods["drq"],  # to compare with, trained in the same way
        Method("bold", "CCLF with a larger bonus", {"bonus_temperature": 0.5, "views": 8}),
        Method(
            "bold-slow",
            "CCLF with a larger bonus and a low learning rate",
            {"bonus_temperature": 0.5},
            {"learning_rate": 1e-4},
        ),
    )


ALGORITHM = BoldSac()
