#!/bin/sh
# End the exploration without handing anything in: no_candidate.sh REASON
exec python3 -I "$(dirname "$0")/request.py" no_candidate "$@"
