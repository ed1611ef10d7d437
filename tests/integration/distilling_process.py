"""One process of a training, of as many as torchrun starts. Arguments: the target's folder, the training's folder."""

import sys
from pathlib import Path

import torch
import transformers

from specdec.model.loading import load_model
from training.answers import Answer
from training.distillation import distill
from training.distillation_settings import DistillationSettings
from training.process_group import process_group

SETTINGS = DistillationSettings(
    train_tokens=500, learning_rate=1e-2, batch_tokens=80, micro_batch_tokens=64, checkpoint_every=1
)


def train(target_folder: str, folder: Path, seed: int) -> list:
    """Train a copy of the target that noise from the seed has disturbed; return the curve."""
    target = load_model(target_folder, device="cpu", dtype="float64")
    student = transformers.AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in student.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += 0.3 * parameter.std() * noise
    texts = torch.randint(40, 42, (32, 24), generator=torch.Generator().manual_seed(5)).tolist()
    answers = [Answer(tuple(text[: 9 + place % 15]), 1 + place % 7) for place, text in enumerate(texts)]
    return distill(student, torch.arange(0, 258, 2), target, answers[:24], answers[24:], SETTINGS, folder)


def main() -> None:
    """Train in the process group that torchrun has set up; only the first process has the right start."""
    torch.set_num_threads(1)
    with process_group(torch.device("cpu")):
        train(sys.argv[1], Path(sys.argv[2]), seed=torch.distributed.get_rank())


if __name__ == "__main__":
    main()
