"""On a GPU, with `--deterministic`: `cclf train` is killed at several moments, started again by the
same command, and ends with the files of an uninterrupted run."""

import pytest

from cclf.storage.atomic_files import find_files
from test_kills import begun, final_files_and_state, killed_after, start_program
from tiny_runs import differing, rows

OPTIONS = (
    "--deterministic --device cuda --no-video --no-tensorboard --log-every-agent-steps 50 "
    "--eval-episodes 2"
)
# The presets of the papers with their networks, batch sizes and fast precisions, for a few updates.
RUNS = {
    "sac": "dmc/cartpole-swingup --method cclf --env-steps 14000 --eval-every-env-steps 2000",
    "drqv2": "dmc/cartpole-swingup --base drqv2 --method drq-v2+cclf --env-steps 3000 "
    "--eval-every-env-steps 600 --warmup-agent-steps 300",
    "rainbow": "atari/Pong --method cclf --env-steps 4000 --eval-every-env-steps 800 "
    "--learn-start-agent-steps 200 --final-eval-episodes 2",
    "rainbow, two runs as a batch": "atari/Pong --method curl --with-seeds 2 --env-steps 4000 "
    "--eval-every-env-steps 800 --learn-start-agent-steps 200",
}
# Seconds of training before each kill, and whether it waits for the next checkpoint to be written.
KILLS = [(1.0, False), (0.0, True), (6.0, True), (0.5, False), (3.0, True)]


@pytest.mark.gpu
@pytest.mark.parametrize("base", RUNS)
def test_deterministic_run_resumed_after_kills_is_bitwise_equal(tmp_path, monkeypatch, base):
    # PyTorch's own warnings about cumulative sums are no warnings of a damaged checkpoint.
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    train = ["train", *RUNS[base].split(), *OPTIONS.split(), "--out"]
    assert not killed_after(start_program, [*train, str(tmp_path / "whole")], 600.0)
    whole = [path.parent for path in find_files(tmp_path / "whole", "config.json")]
    resumed = [tmp_path / "resumed" / run.relative_to(tmp_path / "whole") for run in whole]
    kills = in_checkpoint = 0
    for seconds, at_checkpoint in [*KILLS, (600.0, False)]:
        begun_before = begun(resumed)
        aim_at = resumed if at_checkpoint else ()
        killed = killed_after(start_program, [*train, str(tmp_path / "resumed")], seconds, aim_at)
        kills += killed
        in_checkpoint += killed and bool(begun(resumed) - begun_before)
        if not killed:
            break
    print(f"{base}: {kills} kills, {in_checkpoint} while a checkpoint was written")
    assert not killed
    assert kills >= 3
    assert in_checkpoint >= 1
    for ours, theirs in zip(resumed, whole, strict=True):
        assert (ours / "train.csv").read_bytes() == (theirs / "train.csv").read_bytes()
        for name in ("eval.csv", "final.csv"):
            assert (ours / name).exists() == (theirs / name).exists()
            if (ours / name).exists():
                assert rows(ours / name, "wall_seconds") == rows(theirs / name, "wall_seconds")
        assert differing(final_files_and_state(ours), final_files_and_state(theirs)) == []
