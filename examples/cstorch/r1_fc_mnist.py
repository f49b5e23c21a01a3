"""FC-MNIST in the oldest style (R1.x): `run(Model, get_train_dataloader, get_eval_dataloader)`.

    python examples/cstorch/r1_fc_mnist.py CSX --mode train_and_eval --num_csx 2 \
        --params examples/cstorch/r1_fc_mnist.yaml --model_dir runs/fc_mnist

The import lines of such a script were

    from modelzoo.common.pytorch import cb_model as cm
    from modelzoo.common.pytorch.PyTorchBaseModel import PyTorchBaseModel
    from modelzoo.common.pytorch.run_utils import run

Instead of MNIST it learns noisy copies of ten fixed patterns.
"""

from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F

import wafer_backend.legacy as cm
from wafer_backend.legacy import PyTorchBaseModel, run


class MNIST(nn.Module):
    """A stack of linear layers over 28 x 28 pixels."""

    def __init__(self, model_params):
        super().__init__()
        sizes = [784] + [model_params["hidden_size"]] * model_params["depth"]
        self.fc_layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.last_layer = nn.Linear(sizes[-1], 10)
        self.nonlin = nn.ReLU()
        self.dropout = nn.Dropout(model_params["dropout"])

    def forward(self, inputs):
        """Logits, (B, 10)."""
        x = torch.flatten(inputs, 1)
        for fc_layer in self.fc_layers:
            x = self.dropout(self.nonlin(fc_layer(x)))
        return self.last_layer(x)


class MNISTModel(PyTorchBaseModel):
    """The model with its loss, which is computed outside of the compiled module."""

    def __init__(self, params, device=None):
        self.params = params
        self.loss_fn = nn.NLLLoss()
        self.model = self.build_model(params["model"])
        super().__init__(params=params, model=self.model, device=device)

    def build_model(self, model_params):
        """The bare module."""
        return MNIST(model_params)

    def __call__(self, data):
        """The mean loss of a global batch."""
        inputs, labels = data
        pred_logits = self.model(inputs)
        outputs = F.log_softmax(pred_logits, dim=1)
        return self.loss_fn(outputs, labels)


def synthetic_digits(count, seed):
    """(count, 1, 28, 28) pictures and their digits."""
    patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    pictures = patterns[labels] + 0.3 * torch.randn(count, 1, 28, 28, generator=generator)
    return torch.utils.data.TensorDataset(pictures, labels)


def get_train_dataloader(params):
    """Batches of the whole cluster: there is one task, so nothing is sharded."""
    input_params = params["train_input"]
    dataset = synthetic_digits(480, seed=1)
    sampler = None
    if cm.is_streamer() and cm.num_streamers() > 1:
        sampler = torch.utils.data.distributed.DistributedSampler(
            dataset, num_replicas=cm.num_streamers(), rank=cm.get_streaming_rank()
        )
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=input_params["batch_size"],
        sampler=sampler,
        shuffle=input_params["shuffle"] and sampler is None,
        generator=torch.Generator().manual_seed(2),
        drop_last=input_params["drop_last_batch"],
    )


def get_eval_dataloader(params):
    """Other pictures, in order."""
    input_params = params["eval_input"]
    return torch.utils.data.DataLoader(
        synthetic_digits(192, seed=3),
        batch_size=input_params["batch_size"],
        shuffle=False,
        drop_last=input_params["drop_last_batch"],
    )


if __name__ == "__main__":
    run(MNISTModel, get_train_dataloader, get_eval_dataloader)
