"""What people run: ``python train.py`` in the repository, ``ropewalk train`` where the package is installed.

train.py      train a language model on a text
generate.py   continue a text
evaluate.py   how well a model predicts a text
convert.py    rewrite a model in another program's format
study.py      take RoPE apart
command.py    the command ``ropewalk``, where the package is installed
startup.py    what is set before PyTorch is loaded
"""
