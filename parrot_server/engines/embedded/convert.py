"""From a GGUF file to a folder that the engine loads. Run in a process of its own, since it takes memory and may crash:

python -m parrot_server.engines.embedded.convert SOURCE.gguf FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, quants

from parrot_server.engines.embedded.gguf_tokenizer import write_tokenizer_files
from parrot_server.engines.embedded.openvino_runtime import import_openvino
from parrot_server.errors import SetupError

# What OpenVINO's import reads without loss. Q4_1 is not among them: SmolLM2-135M has perplexity 41.3, as Q8_0 33.1.
_READ_WELL = {GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q4_K", "Q4_0")}


def convert(source: Path, folder: Path) -> None:
    """Write OpenVINO's model and the Hugging Face tokenizer files of a GGUF file into `folder`.

    Raises:
        SetupError: OpenVINO or the file's tokenizer is not usable.
    """
    reader = GGUFReader(source)
    write_tokenizer_files(reader.fields, folder)
    model = folder / "model.gguf"
    _requantise(reader, model)
    import_openvino()
    import openvino_genai

    # Building a pipeline is the one way to have the converted model written out: openvino_model.xml and .bin.
    openvino_genai.LLMPipeline(str(model), "CPU", enable_save_ov_model=True)
    for path in [model, *folder.glob("openvino_*tokenizer.*")]:
        path.unlink()


def _requantise(reader: GGUFReader, target: Path) -> None:
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if key == "general.file_type":
            writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
            continue
        kind = field.types[0]
        writer.add_key_value(key, field.contents(), kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if kind not in _READ_WELL:
            values = quants.dequantize(data, kind).astype(np.float32)
            data, kind = quants.quantize(values, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except SetupError as error:
        sys.exit(str(error))
