"""Load a GGUF file and print text as it is generated.

python examples/stream_text.py [model.gguf] [prompt]
"""

import sys

import ggmlpy

path = sys.argv[1] if len(sys.argv) > 1 else ggmlpy.packaged_model()
prompt = sys.argv[2] if len(sys.argv) > 2 else "One day, a little dog"

with ggmlpy.Llama(path, seed=1) as llm:
    print(prompt, end="")
    for chunk in llm(prompt, max_tokens=120, temperature=0.7, stream=True):
        print(chunk["choices"][0]["text"], end="", flush=True)
    print(f"\n\n{llm.timings}")
