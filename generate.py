"""Continue a text with a trained model: its own run directory, or a published Llama checkpoint.

python generate.py                                  a text from the newest run
python generate.py runs/demo --prompt "The list"    a continuation
python generate.py --help                           everything else
"""

from model.cli import run_script
from model.scripts.generate import main

if __name__ == "__main__":
    run_script(main, "generate.py")
