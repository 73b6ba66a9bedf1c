"""The five systems, one folder each, on the same plan.

`intake` takes work in, `work` is what handlers do, `beside` is what is written in the same commit, `desk` is what operators do
there, `routes` are its HTTP routes, `shapes` what strangers send, `values` what we hold, `page` its page. They come in by the
public doors, as a system of yours would, and do not know each other. `kit` is what several of them need.
"""

from redrive.parts import require_room

require_room(__name__, "kit")
