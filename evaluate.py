#!/usr/bin/env python3
"""Measure how well a model predicts a text: nats per token, perplexity, bits per byte.

python evaluate.py runs/demo --data test.txt
python evaluate.py path/to/Llama-3.2-1B --data books/ --stride 512 --json
"""

from model.cli import run_script
from model.scripts.evaluate import main

if __name__ == "__main__":
    run_script(main, "evaluate.py")
