"""Convert a model to another format. An architecture that the format cannot express is refused.

python convert.py runs/demo demo.bin --to llama2c                 for llama2.c's run.c, also writes demo.tokenizer.bin
python convert.py runs/demo demo.bin --to llama2c --version 2     in int8, for llama2.c's runq.c
python convert.py meta-llama/original my-llama --to hf            for transformers, vLLM, llama.cpp's converter
python convert.py my-llama consolidated --to meta --dtype bfloat16
"""

from model.cli import run_script
from model.scripts.convert import main

if __name__ == "__main__":
    run_script(main, "convert.py")
