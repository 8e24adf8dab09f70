"""For study only: the other ways to tell a transformer where a token is. LLaMA needs none of this.

    forms.py     RoPE itself, in every way it gets written
"""
