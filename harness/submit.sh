#!/bin/sh
# Hand in /workspace as it is now: submit.sh [--allow-empty]
# The exploration ends when the host accepts; a refusal says what to mend.
exec python3 -I "$(dirname "$0")/request.py" submit "$@"
