"""The scripts: ``python train.py`` in the repository, ``ropewalk train`` if the package is installed.

train.py      train a language model on a text
generate.py   continue a text
evaluate.py   measure how well a model predicts a text
convert.py    convert a model to another format
study.py      print tables and plots that explain RoPE
command.py    the installed command ``ropewalk``
startup.py    environment variables and handlers that must be set before PyTorch is imported
"""
