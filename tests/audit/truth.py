"""Run scripts and their mutants on the backdoor experiment, and print which of them work.

Needs PyTorch; from the folder of the project:

    docker run --rm --network none -v "$PWD:/project:ro" -w /project -e PYTHONDONTWRITEBYTECODE=1 \\
        orch/torch-cpu:1 python3 -m tests.audit.truth [SET...]

A script works when what its ``unlearn`` gives is, to 1e-6, what ascent gives. One line a script:
its set, its name, and a 1 or 0 for itself and, if it works, for each of its mutants.
"""

import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.audit.mutants import mutants
from tests.audit.scripts import PACK, SETS, read

LONGEST_S = 5
CLOSE = 1e-6

sys.path[:0] = [str(PACK), str(PACK / "solution"), str(PACK / "evaluator")]


class Late(BaseException):
    """A script took too long."""


def works(code: str, detector: Any, assets: Path, wanted: Any) -> bool:
    """Tell whether a script does what ascent does."""
    import torch  # noqa: PLC0415 - only where this is run

    space: dict[str, Any] = {"__name__": "answer", "torch": torch, "np": np}
    space["F"] = torch.nn.functional
    model, retain, forget = detector.load(assets)
    signal.alarm(LONGEST_S)
    try:
        exec(compile(code, "answer.py", "exec"), space)  # noqa: S102 - our own test data
        result = space["unlearn"](model, retain, forget, alpha=1.0, lr=0.00758, steps=80)
        module = result if isinstance(result, torch.nn.Module) else model
        given = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    except (Exception, Late):  # noqa: BLE001 - whatever it raises, it does not work
        return False
    finally:
        signal.alarm(0)
    return given.shape == wanted.shape and bool(np.abs(given - wanted).max() < CLOSE)


def _late(*_: object) -> None:
    raise Late


def main() -> None:
    """Run everything."""
    import backdoor  # noqa: PLC0415 - the pack's own modules, found beside it
    import detector  # noqa: PLC0415
    import prepare  # noqa: PLC0415

    data = backdoor.make_data(0)
    wanted = backdoor.unlearn(backdoor.poison(data), data.retain, data.forget, backdoor.ALPHA)
    signal.signal(signal.SIGALRM, _late)
    with tempfile.TemporaryDirectory() as place:
        assets = Path(place) / "assets"
        prepare.main(assets, 0)
        for name in sys.argv[1:] or SETS:
            for script in read(name):
                found = [works(script.code, detector, assets, wanted)]
                if found[0]:
                    found += [
                        works(one.code, detector, assets, wanted) for one in mutants(script.code)
                    ]
                print(name, script.name, "".join("01"[one] for one in found), flush=True)


if __name__ == "__main__":
    main()
