"""What every test starts from: one thread, so that sums have one order, and no deadline on shared machines."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("cclf", deadline=None)
settings.load_profile("cclf")
