"""Stand-ins for packages that SGLang imports and its CPU path does not use: GPU kernels, vision, audio, grammars.

A .pth file loads this in the kit's own virtual environment and nowhere else. The finder comes last, so a package that is
installed is never stood in for. SGLang is the published wheel, unchanged.
"""

import importlib.abc
import importlib.machinery
import sys
import types

ABSENT = frozenset(
    {
        "IPython",
        "anthropic",
        "av",
        "blobfile",
        "compressed_tensors",
        "cuda",
        "cutlass",
        "datasets",
        "decord",
        "deep_gemm",
        "flashinfer",
        "interegular",
        "jsonschema",
        "llguidance",
        "mistral_common",
        "modelscope",
        "nvshmem",
        "openai_harmony",
        "outlines",
        "quack",
        "scipy",
        "sentencepiece",
        "sgl_kernel",
        "sgl_kernel_npu",
        "soundfile",
        "tiktoken",
        "tilelang",
        "timm",
        "torchaudio",
        "torchvision",
        "tvm_ffi",
        "xgrammar",
    }
)


class AnyClass(type):
    """The class of classes that have every attribute and can be called, used as decorators, joined by | and iterated."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *args, **kwargs):
        is_decorated = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_decorated else cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __iter__(cls):
        return iter(())


def any_schema(cls, source=None, handler=None):
    """To pydantic, a stand-in is a type that takes anything."""
    from pydantic_core import core_schema

    return core_schema.any_schema()


def stand_in(name):
    """A class that stands in for whatever a stubbed module would have had under a name."""
    return AnyClass(name, (), {"__module__": "stub", "__get_pydantic_core_schema__": classmethod(any_schema)})


class StubModule(types.ModuleType):
    """A module that has every attribute."""

    __version__ = "0.0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = stand_in(name)
        setattr(self, name, value)
        return value


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nobody else found, if it is on the list."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ABSENT:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = []
        return spec

    def create_module(self, spec):
        module = StubModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(StubFinder())
