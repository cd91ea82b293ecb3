"""Hugging Face folders: what their configuration says, their tokenizer, and their model as a torch module.

Of a folder everything that can change an answer is honoured, or refused by name. No code of a folder is run
(trust_remote_code is off) and no pickle is loaded. Only ``module`` imports torch and transformers.
"""

from tailcut.models.runtimes.huggingface.folder import Folder, read
from tailcut.models.runtimes.huggingface.module import INPUTS, module

__all__ = ["INPUTS", "Folder", "module", "read"]
