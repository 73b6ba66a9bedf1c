"""What every route goes through, whichever system it belongs to: the envelope, the one form of errors, keys.

It knows no service and no route. `web/` puts the routes together, each system brings its own.
"""

from redrive.parts import require_room

require_room(__name__, "guard")
