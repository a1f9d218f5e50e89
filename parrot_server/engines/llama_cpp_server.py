"""llama.cpp's HTTP server as a process, until a signal ends it:

python -m parrot_server.engines.llama_cpp_server NAME PORT KV_TOKENS THREADS FILE.gguf        (0: its own choice)
"""

from __future__ import annotations

import sys
import threading

import xllamacpp

SLOTS = 4  # so many calls run at once; they share the KV
HOST_CACHE_MIB = 1024  # llama.cpp's own choice, 8 GiB, is more than small machines have


def main(name: str, port: str, kv_tokens: str, threads: str, file: str) -> None:
    """Serve a model. Raises what llama.cpp raises when it cannot."""
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.model_alias = {name}
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_ctx = int(kv_tokens)
    params.n_parallel = SLOTS
    params.kv_unified = True
    params.cache_ram_mib = HOST_CACHE_MIB
    params.ui = False
    if int(threads):
        params.cpuparams.n_threads = int(threads)
        params.cpuparams_batch.n_threads = int(threads)
    server = xllamacpp.Server(params)
    print("listens at", server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
