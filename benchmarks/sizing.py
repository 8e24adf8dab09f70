#!/usr/bin/env python3
"""How the loss depends on the model, the tokens it sees and the text: runs, and the law that ``train.py`` chooses by.

    python benchmarks/sizing.py                     # fit the law to sizing.jsonl, and say how well it predicts
    python benchmarks/sizing.py --run python-docs --dim 128 --n_layers 3 --tokens 1600000 --batch_size 4

A run trains for a number of tokens, not for a time, so that any machine may add runs to sizing.jsonl, busy or not.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from model import ModelArgs, Transformer
from model.cli.machine import keep_freed_memory
from model.text.dataset import Dataset
from model.text.prepare import prepare
from model.text.python_docs import corpus_files
from model.text.sources import open_documents
from model.text.token_cache import cache_home
from model.text.tokenizer import Tokenizer
from model.text.train_tokenizer import learn_tokenizer
from model.training.config import TrainArgs
from model.training.distributed import Ranks
from model.training.estimate import count_parameters
from model.training.evaluation import evaluate, guessing_loss
from model.training.optimizer import learning_rate
from model.training.sizing import expected_loss
from model.training.trainer import Trainer
from model.weights import load_tokenizer

RUNS = Path(__file__).parent / "sizing.jsonl"
