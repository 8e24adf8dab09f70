"""Continue a text with a trained model: a run directory or a published Llama checkpoint.

python generate.py                                  generate a text with the newest run
python generate.py runs/demo --prompt "The list"    continue a prompt
python generate.py --help                           list all flags
"""

from model.cli import run_script
from model.scripts.generate import main

if __name__ == "__main__":
    run_script(main, "generate.py")
