"""The HTTP server of `ggmlpy serve`.

In: models by name, settings, HTTP requests. Out: an ASGI application, and its answers: JSON, or
server-sent events.

    request  ->  endpoint.py    its key, its body (body.py), limits
             ->  a handler      fields to prompts and options: openai/
             ->  gate.py        its turn among other requests
             ->  generation.py  pieces from the engine
    answer   <-  JSON, or events.py

The event loop only reads, parses and writes. Prompts are made in a pool of threads, and the engine
has a thread of its own (`ggmlpy/engine/async_answers.py`).
"""

from ggmlpy.server.app import create_app as create_app
from ggmlpy.server.hosted import Hosted as Hosted
from ggmlpy.server.hosted import Models as Models
from ggmlpy.server.settings import Settings as Settings
