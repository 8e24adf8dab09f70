"""Directories on disk: a run directory, Hugging Face, Meta and llama2.c checkpoints, all opened by looking at the path.

    files.py     whole files or none
"""
