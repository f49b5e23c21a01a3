"""What ranks of a test of bits run: cases one after another, in one process group.

Arguments: transport, steps, cases. A case is module:precision:leaves:num_csx. Printed for each: the
case, and digests of its losses and of its final state, which only rank 0 must have.
"""

import hashlib
import sys
from dataclasses import replace

from tests.wafer_backend.modules import GPT2, Llama, Mixed, Stateless, Trained, train, train_outside
from wafer_backend.compiled import BackendConfig
from wafer_backend.transports.simulated import FaultPlan, Simulation

MODULES = {
    "gpt2": (GPT2, train),
    "llama": (Llama, train),
    "tied": (Mixed, train),
    "outside": (Stateless, train_outside),
}
PRECISIONS = ("float32", "bfloat16")
ACTIVATIONS = {1: "keep", 2: "keep", 3: "recompute", 4: "evict", 5: "keep", 8: "recompute"}
# Messages overtake one another, none is lost.
NETWORK = Simulation(7, FaultPlan(delay=0.001))
CONFIG = BackendConfig(target="CSX", micro_batch_size=2, seed=3, simulation=NETWORK, liveness=60.0)


def run(case: str, transport: str, steps: int) -> Trained:
    """Train one case: two samples a leaf, the last leaf short in path a."""
    module, precision, leaves, num_csx = case.split(":")
    make, training = MODULES[module]
    config = replace(CONFIG, precision=precision, transport=transport, num_csx=int(num_csx))  # type: ignore[arg-type]
    samples = 2 * int(leaves) - (training is train)
    return training(make, config, samples, steps, activations=ACTIVATIONS[int(num_csx)])


def digest(trained: Trained) -> str:
    """Of losses and gradient norms, and of the state's bytes in order."""
    losses = hashlib.sha256(repr(trained.losses).encode()).hexdigest()
    state = hashlib.sha256()
    for name, tensor in trained.state.items():
        state.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return f"{losses} {state.hexdigest()}"


def main() -> None:
    transport, steps, *cases = sys.argv[1:]
    for case in cases:
        print(case, digest(run(case, transport, int(steps))), flush=True)


if __name__ == "__main__":
    main()
