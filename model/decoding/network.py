"""The network of the decode loop: accelerated, in eval mode, with logits after the last token only."""

from torch import Tensor, nn

from ..fast.kernels import FastTiedOutput, accelerate, fast_product, replace_modules
from ..fast.step import with_fast_step
from ..transformer import Transformer


def for_decoding(model: Transformer, compile: bool = False) -> Transformer:
    """A copy of ``model`` for the decode loop, which shares all parameters and hooks. It leaves ``model`` as it is.

    The logits of a call are (B, 1, V), because those of a long prompt would take much memory. On a GPU of NVIDIA or
    AMD, the forward pass of one token of each row is recorded, if it can be. With ``compile`` it is compiled, on a CPU
    once and for all into a file; raises ValueError if that is impossible (``check_compiles``).

    Weights that are changed in place take effect at the next token, and weights that are replaced by others at the next
    prompt. A network that this function has returned is not changed.
    """
    if isinstance(model.output, LastLogits):
        return model
    network = replace_modules(accelerate(model), fast_product).eval()
    output = FastTiedOutput(network.tok_embeddings) if network.output is None else network.output
    network.output = LastLogits(output)
    return with_fast_step(network, compile)


class LastLogits(nn.Module):
    """The output matrix, times the state of the last token only: (B, T, dim) -> (B, 1, V)."""

    def __init__(self, output: nn.Module) -> None:
        super().__init__()
        self.output = output

    def forward(self, h: Tensor) -> Tensor:
        return self.output(h[:, -1:])
