"""The results of the network, computed faster or in less memory. Skip this folder on first reading.

The network does not know these files. ``accelerate``, ``put_matrix``, ``NextTokenLoss`` and ``for_decoding`` put them
into it, or into a copy of it, from outside.

kernels.py    matrix products, attention and norms
merged.py     on a GPU: matrices that multiply the same vectors, as one product
int8.py       int8 weights, and layers that use them
loss.py       the loss of a training step, without all logits at once
step.py       the forward pass of one token of each row: chooses one of those in the last three files
token.py      that forward pass as a function of tensors alone, for compiled.py and recorded.py
direct.py     on a CPU: functions in place of modules
compiled.py   on a CPU: compiled into files that later processes load
recorded.py   on a GPU: its kernels, recorded once and then started together
"""
